"""DPO: another model of the Model Zoo, once as the policy that is trained and once as the reference."""
from . import gptj, llama, mixtral, zoo

MODEL = "dpo"
COMPUTED = False
NEWEST = "cs-2.9-dpo"
RELEASES = ["cs-2.1-dpo"]
BUFFERS = llama.BUFFERS
TRAINED = ""  # its models are two of their own, each in a `model`


def wrapped(model_zoo):
    def forward(w, c, ids):
        assert c["dpo"] == {"beta": 0.1, "reference_free": False}
        policy = w.below("policy_model.model.")
        logits = model_zoo(policy, c, ids)
        for name in [name for name in w.used if name.startswith(policy.prefix)]:
            w.again(name, name.replace("policy_model", "ref_model", 1))
        return logits
    return forward


model_zoo = wrapped(zoo.gpt2_lm_head_model)
hugging_face = llama.hugging_face
CASES = {
    "LLaMA": {"hf": {**llama.USUAL_BASE, "num_key_value_heads": 2}, "keep": tuple(llama.HF)},
    "GPT-J": {"hf": gptj.HF, "hugging_face": gptj.hugging_face, "model_zoo": wrapped(gptj.model_zoo)},
    "Mixtral": {"hf": mixtral.HF, "hugging_face": mixtral.hugging_face, "keep": mixtral.KEEP,
                "refused": {"cs-2.1-dpo": "model_type='mixtral'"}},
    "LLaMA with muP": {"cs": {**llama.CS, "model_name": "llama", "dpo": {"beta": 0.1, "reference_free": False}, "mup_base_hidden_size": 8,
                              "mup_base_filter_size": 6, "embeddings_scale": 3.0, "output_logits_alpha": 1.5}, "keep": ("dpo", "model_name")},
}
