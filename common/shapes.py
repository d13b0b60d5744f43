"""Type aliases of tensors with their shapes. Each letter has one meaning in the whole project.

B  batch: sequences computed together            H  heads
N  queries                                       M  keys (and values), memory included
D  width of one head (``head_dim``)              E  width of one value head
T  tokens of a sequence, padding included        C  width of the model (``dim``)
S  tokens of another sequence attended to        K  keys covered by a state
P  selected positions of a batch                 V  tokens of the vocabulary
W  hypotheses of one source (a beam)             I  pictures, R views per picture, Q boxes per view

Masks are True for real tokens and False for padding. An axis marked ``#`` may have size 1 and is broadcast.
``*some`` is no axis, or one axis over the sequences that form an example.
Functions are annotated with these aliases. Shapes are checked in tests only, not in production.
"""

from jaxtyping import Bool, Float, Int, Shaped, UInt8
from torch import Tensor

Query = Float[Tensor, "B H N D"]
Key = Float[Tensor, "B H M D"]
Value = Float[Tensor, "B H M E"]
Output = Float[Tensor, "B H N E"]
Scores = Float[Tensor, "B H N M"]
Weights = Float[Tensor, "B H N M"]
Bias = Float[Tensor, "#B #H #N #M"]
Pairs = Bool[Tensor, "#B #H #N #M"]
ColumnLse = Float[Tensor, "B H M"]
EarlierLse = Float[Tensor, "B H K"]
QueryMask = Bool[Tensor, "B N"]
KeyMask = Bool[Tensor, "B M"]
Segments = Int[Tensor, "B M"]
KeyCounts = Int[Tensor, "B N"]

Tokens = Int[Tensor, "B T"]
Mask = Bool[Tensor, "B T"]
TokensOfSome = Int[Tensor, "B *some T"]
MaskOfSome = Bool[Tensor, "B *some T"]
Hidden = Float[Tensor, "B T C"]
Context = Float[Tensor, "B S C"]
SourceTokens = Int[Tensor, "B S"]
SourceMask = Bool[Tensor, "B S"]
Pooled = Float[Tensor, "B C"]
Logits = Float[Tensor, "B classes"]
Labels = Int[Tensor, "B"]
Places = Int[Tensor, "P"]
PlacesOfRows = Int[Tensor, "B P"]
ScoresOfRows = Float[Tensor, "B P"]
TokenScores = Float[Tensor, "B T"]
Picked = Float[Tensor, "P C"]
TokenIds = Int[Tensor, "P"]
Table = Float[Tensor, "V C"]
PerToken = Float[Tensor, "V"]
Total = Float[Tensor, ""]
TokenLosses = Float[Tensor, "P"]
Scored = Float[Tensor, "P V"]
TwoWay = Float[Tensor, "B 2"]
PerExample = Shaped[Tensor, "B"]

PictureBytes = UInt8[Tensor, "B 3 rows columns"]
Pixels = Float[Tensor, "B 3 rows columns"]
PerClass = Float[Tensor, "B classes"]

Regions = Float[Tensor, "I R Q width"]
Centres = Float[Tensor, "I R Q 2"]
RegionsReal = Bool[Tensor, "I R Q"]
KeyMasses = Float[Tensor, "I secondary Q"]
Joined = Float[Tensor, "I joined other"]
JoinedReal = Bool[Tensor, "I joined"]
SoftTargets = Float[Tensor, "B answers"]
Asking = Float[Tensor, "B asking"]
Spelled = Float[Tensor, "B T word"]

BeamQuery = Float[Tensor, "B H W D"]
BeamKey = Float[Tensor, "B H W D"]
BeamValue = Float[Tensor, "B H W E"]
BeamHeads = Float[Tensor, "B H W E"]
BeamHidden = Float[Tensor, "B W C"]
BeamTokens = Int[Tensor, "B W"]
BeamLogits = Float[Tensor, "B W V"]
BeamParents = Int[Tensor, "B W"]
BeamScores = Float[Tensor, "B W"]
Ancestry = Int[Tensor, "B W T"]
BeamLse = Float[Tensor, "rows H known"]
EarlierBeamLse = Float[Tensor, "rows H earlier"]
Sources = Int[Tensor, "kept"]
