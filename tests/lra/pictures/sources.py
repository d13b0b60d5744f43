"""Small picture data sets in the layouts that users have."""

import io
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("n01443537", "n01629819", "n01641577")
SIDE = 8


def picture(seed: int, size: tuple[int, int] = (SIDE, SIDE), mode: str = "RGB") -> bytes:
    """Returns a JPEG of noise; ``size``: columns and rows."""
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).convert(mode).save(buffer, "JPEG")
    return buffer.getvalue()


def tiny_imagenet(folder: Path, train: int = 4, val: int = 2) -> Path:
    """Writes the folders of Tiny-ImageNet with ``train`` and ``val`` pictures per class."""
    root = folder / "tiny-imagenet-200"
    lines = []
    for number, name in enumerate(CLASSES):
        (root / "train" / name / "images").mkdir(parents=True)
        (root / "train" / name / f"{name}_boxes.txt").write_text("boxes\n")
        for index in range(train):
            file = root / "train" / name / "images" / f"{name}_{index}.JPEG"
            file.write_bytes(picture(100 * number + index))
        (root / "val" / "images").mkdir(parents=True, exist_ok=True)
        for index in range(val):
            (root / "val" / "images" / f"val_{number}_{index}.JPEG").write_bytes(picture(1_000 + 100 * number + index))
            lines.append(f"val_{number}_{index}.JPEG\t{name}\t0\t0\t7\t7")
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (root / "test" / "images").mkdir(parents=True)
    (root / "test" / "images" / "test_0.JPEG").write_bytes(picture(9_999))
    return root


def zipped(root: Path) -> Path:
    """Returns a zip archive of a folder, beside it, with the folder's name inside."""
    path = root.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for each in sorted(root.rglob("*")):
            archive.write(each, each.relative_to(root.parent))
    return path


def class_folders(folder: Path, sizes: tuple[tuple[int, int], ...] = ((20, 12), (12, 16))) -> Path:
    """Writes train/CLASS and val/CLASS with pictures of several sizes."""
    root = folder / "imagenet"
    for part, count in (("train", 4), ("val", 2)):
        for number, name in enumerate(CLASSES):
            (root / part / name).mkdir(parents=True)
            for index in range(count):
                content = picture(100 * number + index + 500 * (part == "val"), sizes[index % len(sizes)])
                (root / part / name / f"{index}.JPEG").write_bytes(content)
    return root
