"""Ways to get a convention of a model wrong, made in what a conversion gave to the Model Zoo (logits_interop.py)."""
import re

SWAPS = [(".proj_q_dense", ".proj_k_dense"), (".proj_k_dense", ".proj_v_dense"), (".linear_layer.", ".linear_layer_for_glu."),
         (".norm1.", ".norm2."), (".norm1.", ".norm3."), (".norm2.", ".norm3."),
         ("encoder_embeddings.position_", "decoder_embeddings.position_")]
SQUARE = ["attn.proj_output_dense_layer.weight", "attn.proj_q_dense_layer.weight"]
NUMBERS = ["layer_norm_epsilon", "rope_theta", "pos_scaling_factor", "embeddings_scale", "attention_logits_alpha", "output_logits_alpha",
           "output_logits_scale", "mup_base_hidden_size", "embeddings_alpha", "encoder_attention_logits_alpha",
           "decoder_attention_logits_alpha", "mup_base_d_model"]
WINDOW = "attention_sliding_window_length"
SWITCHES = ["scale_qk_dot_by_d", "scale_output_logits_by_d", "scale_encoder_qk_dot_by_d", "scale_decoder_qk_dot_by_d",
            "use_untied_layer_norm"]


def swapped(tensors, a, b):
    out = dict(tensors)
    for name in tensors:
        other = name.replace(a, b)
        if a in name and other in tensors and tensors[other].shape == tensors[name].shape:
            out[name], out[other] = tensors[other], tensors[name]
    return out


def rotary_halves(tensors, size):
    """Rows of queries and keys as if nobody had interleaved them."""
    def undone(rows):
        return rows.reshape(-1, size // 2, 2, rows[0].numel()).transpose(1, 2).reshape(rows.shape)
    return {name: undone(t) if re.search("proj_[qk]_dense", name) else t for name, t in tensors.items()}


def mistakes(config, tensors):
    for a, b in SWAPS:
        wrong = swapped(tensors, a, b)
        if any(wrong[name] is not tensors[name] for name in tensors):
            yield f"'{a}' for '{b}'", config, wrong
    for part in SQUARE:
        turned = {name: t.T if part in name and t.shape[0] == t.shape[1] else t for name, t in tensors.items()}
        if any(turned[name] is not tensors[name] for name in tensors):
            yield f"'{part}' transposed", config, turned
    for section, of, replaced in sections_of(config):
        yield from wrong_fields(section, of, replaced, tensors)


def sections_of(config):
    """The config, or its sections where it is that of several models: each with what the names of its tensors begin with, and a function
    that gives the whole with changed fields of the section."""
    parts = [name for name, value in config.items() if isinstance(value, dict) and "hidden_size" in value]
    for name in parts:
        yield config[name], name + ".", lambda changed, name=name: {**config, name: {**config[name], **changed}}
    if not parts:
        yield config, "", lambda changed: {**config, **changed}


def wrong_fields(section, of, replaced, tensors):
    if section.get("position_embedding_type") == "rotary":
        own = {name: tensor for name, tensor in tensors.items() if name.startswith(of)}
        yield f"{of}rotary halves for pairs", replaced({}), {**tensors, **rotary_halves(own, section["rotary_dim"])}
    is_learned = section.get("position_embedding_type", "learned") == "learned"  # nothing scales such positions
    for field in NUMBERS:
        if section.get(field) and not (is_learned and field == "pos_scaling_factor"):
            yield f"another {of}{field}", replaced({field: section[field] * 3}), tensors
    if section.get(WINDOW):
        yield f"another {of}{WINDOW}", replaced({WINDOW: section[WINDOW] // 3}), tensors
    for field in SWITCHES:
        if section.get(field) is not None and not (field == "use_untied_layer_norm" and not section[field]):
            yield f"another {of}{field}", replaced({field: not section[field]}), tensors
