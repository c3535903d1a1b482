"""JAIS: the same model as BTLM, by another name."""
from . import btlm
from .btlm import hugging_face  # noqa: F401
from .zoo import gpt2_lm_head_model as model_zoo  # noqa: F401  the other side

MODEL = "jais"
HF = {**btlm.HF, "model_type": "jais"}
CASES = {"ALiBi, muP": {"hf": HF}, "muP since 2.3": {"cs": btlm.CS}}
