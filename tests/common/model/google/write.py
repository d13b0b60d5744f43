"""Writes the checkpoints of this folder with TensorFlow: ``python -m tests.common.model.google.write``.

They have Google's names, shapes and files, in tiny. The tests compute the same numbers by ``values`` again, without
TensorFlow.
"""

import json
import math
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).parent
TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(".", "?"), *"what who where is was in the a".split(),
          *"paris france capital city river king of rules".split(), "##s")  # fmt: skip
SIZES = {"attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 8,
         "initializer_range": 0.02, "intermediate_size": 12, "max_position_embeddings": 24, "num_attention_heads": 2,
         "num_hidden_layers": 2, "type_vocab_size": 2}  # fmt: skip
CONFIGS = {
    "bert": {**SIZES, "vocab_size": len(TOKENS)},
    "albert": {**SIZES, "attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0, "embedding_size": 4,
               "num_hidden_groups": 1, "inner_group_num": 1, "net_structure_type": 0, "gap_size": 0,
               "num_memory_blocks": 0, "down_scale_factor": 1, "vocab_size": 120},
}  # fmt: skip
NAMES = {"bert": "bert_model.ckpt", "albert": "model.ckpt-best"}
"""Name of each checkpoint, as in Google's archives."""


def dense(name: str, before: int, after: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/kernel": (before, after), f"{name}/bias": (after,)}


def norm(name: str, dim: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/gamma": (dim,), f"{name}/beta": (dim,)}


def variables(kind: str) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each variable of a model, by its name in Google's code."""
    config = CONFIGS[kind]
    dim, inner, words = (int(str(config[name])) for name in ("hidden_size", "intermediate_size", "vocab_size"))
    width = int(str(config.get("embedding_size", dim)))
    tables = {"word": words, "position": int(str(config["max_position_embeddings"])), "token_type": 2}
    found: dict[str, tuple[int, ...]] = {
        f"bert/embeddings/{name}_embeddings": (rows, width) for name, rows in tables.items()
    }
    found |= norm("bert/embeddings/LayerNorm", width)
    if kind == "albert":
        layer = "bert/encoder/transformer/group_0/inner_group_0"
        found |= dense("bert/encoder/embedding_hidden_mapping_in", width, dim)
        parts = {name: f"{layer}/attention_1/self/{name}" for name in ("query", "key", "value")}
        parts |= {"output": f"{layer}/attention_1/output/dense", "norm": f"{layer}/LayerNorm"}
        parts |= {"up": f"{layer}/ffn_1/intermediate/dense", "down": f"{layer}/ffn_1/intermediate/output/dense"}
        layers = [parts | {"last": f"{layer}/LayerNorm_1"}]
    else:
        layers = []
        for index in range(2):
            layer = f"bert/encoder/layer_{index}"
            parts = {name: f"{layer}/attention/self/{name}" for name in ("query", "key", "value")}
            parts |= {"output": f"{layer}/attention/output/dense", "norm": f"{layer}/attention/output/LayerNorm"}
            parts |= {"up": f"{layer}/intermediate/dense", "down": f"{layer}/output/dense"}
            layers.append(parts | {"last": f"{layer}/output/LayerNorm"})
    for parts in layers:
        for name in ("query", "key", "value", "output"):
            found |= dense(parts[name], dim, dim)
        found |= norm(parts["norm"], dim) | norm(parts["last"], dim)
        found |= dense(parts["up"], dim, inner) | dense(parts["down"], inner, dim)
    found |= dense("bert/pooler/dense", dim, dim) | dense("cls/predictions/transform/dense", dim, width)
    found |= norm("cls/predictions/transform/LayerNorm", width)
    found |= {"cls/predictions/output_bias": (words,)}
    return found | {"cls/seq_relationship/output_weights": (2, dim), "cls/seq_relationship/output_bias": (2,)}


def slots(kind: str) -> dict[str, tuple[int, ...]]:
    """Returns the optimiser's variables. Google's archives have none; those of one's own training have all."""
    trained = [name for name in variables(kind) if name.endswith(("/beta", "/output_bias"))]
    return {f"{name}/{slot}": variables(kind)[name] for name in trained for slot in ("adam_m", "adam_v")}


def values(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Returns numbers between -0.5 and 0.5 that depend on the name alone, the same everywhere."""
    count = np.arange(math.prod(shape), dtype=np.uint64)
    mixed = (count * np.uint64(2654435761) + np.uint64(zlib.crc32(name.encode()))) % np.uint64(2**24)
    return (mixed.astype(np.float32) / np.float32(2**24) - np.float32(0.5)).reshape(shape)


def write(kind: str, folder: Path, shards: int = 1) -> None:
    """Writes a checkpoint with ``tf.compat.v1.train.Saver``; each device is a shard."""
    import tensorflow as tf  # noqa: PLC0415

    v1 = tf.compat.v1
    folder.mkdir(parents=True, exist_ok=True)
    shapes = variables(kind) | slots(kind)
    with tf.Graph().as_default():
        for number, (name, shape) in enumerate(shapes.items()):
            with tf.device(f"/cpu:{number % shards}"):
                v1.get_variable(name, initializer=values(name, shape))
        with tf.device("/cpu:0"):
            v1.train.get_or_create_global_step()
        saver = v1.train.Saver(sharded=shards > 1, save_relative_paths=True)
        with v1.Session(config=v1.ConfigProto(device_count={"CPU": shards})) as session:
            session.run(v1.global_variables_initializer())
            saver.save(session, str(folder / NAMES[kind]), write_meta_graph=False)
    (folder / "checkpoint").unlink()
    (folder / f"{kind}_config.json").write_text(json.dumps(CONFIGS[kind], indent=2) + "\n")
    if kind == "bert":
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in TOKENS))


if __name__ == "__main__":
    write("bert", HERE / "bert")
    write("albert", HERE / "albert", shards=2)
