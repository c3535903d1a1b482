"""MLLaMA: a vision model over tiles of an image, and a LLaMA of which some layers attend to what it makes of them."""
import torch
import torch.nn.functional as F

from .layers import ACTIVATIONS, angles, attention, rotate_halves, rotate_pairs, split
from .zoo import feed_forward, rotary_angles

MODEL = "mllama"
COMPUTED = False
SECTIONS = ("text_config", "vision_config")
TILES = 2


def inputs(random):
    return (torch.randint(19, (2, 7), generator=random), torch.randn(2, TILES, 3, 8, 8, generator=random), torch.tensor([1, 2]))


class Side:
    """Names of the vision model's parts."""
    def __init__(self, place, layer, names, gates):
        self.place, self.layer, self.names, self.gates = place, layer, names, gates


HF_SIDE = Side("model.vision_model.", ("input_layernorm", "post_attention_layernorm", "mlp.fc1", "mlp.fc2"),
               ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_attn", "gate_ffn"))
ZOO_SIDE = Side("image_model.", ("norm1", "norm2", "ffn.ffn.0.linear_layer", "ffn.ffn.1.linear_layer"),
                ("proj_q_dense_layer", "proj_k_dense_layer", "proj_v_dense_layer", "proj_output_dense_layer"),
                ("gate_attn_weight", "gate_ffn_weight"))


def transformer(w, side, name, x, depth, heads, inner, eps, act, is_gated):
    width, outputs = x.shape[-1], []
    for i in range(depth):
        layer = f"{side.place}{name}.layers.{i}."

        def gated(out, gate, layer=layer):
            return out * w.get(layer + gate, 1).tanh() if is_gated else out
        outputs.append(x)
        normed = w.layer_norm(layer + side.layer[0], x, eps)
        q, k, v = (split(w.linear(f"{layer}self_attn.{one}", normed, width, False), heads) for one in side.names[:3])
        out = w.linear(f"{layer}self_attn.{side.names[3]}", attention(q, k, v, (width // heads) ** -0.5), width, False)
        x = x + gated(out, side.gates[0])
        normed = w.layer_norm(layer + side.layer[1], x, eps)
        out = w.linear(layer + side.layer[3], ACTIVATIONS[act](w.linear(layer + side.layer[2], normed, inner)), width)
        x = x + gated(out, side.gates[1])
    return x, outputs


def vision(w, side, patches, shapes, c, heads, inner, eps, act):
    """`patches` are embedded, (batch, tiles, patches, width)."""
    width, ratios = patches.shape[-1], len(c["supported_aspect_ratios"]) + 1

    def tiled(x, name):
        table = w.embedding(f"{side.place}{name}_tile_positional_embedding.embedding", shapes, ratios, TILES * width)
        return x + table.view(-1, TILES, 1, width) * w.get(f"{side.place}{name}_tile_positional_embedding.gate", 1).tanh()
    x = tiled(patches, "pre")
    x = torch.cat([w.get(side.place + "class_embedding", width).expand(*x.shape[:2], 1, width), x], 2)
    count, place = x.shape[2], side.place + "gated_positional_embedding."
    gate, table = w.get(place + "gate", 1).tanh(), w.get(place + "embedding", count, width)
    x = x + (1 - gate) * table
    x = x + gate * w.embedding(place + "tile_embedding", shapes, ratios, TILES * count * width).view(-1, TILES, count, width)
    x = w.layer_norm(side.place + "layernorm_pre", x, 1e-5).flatten(1, 2)
    x, outputs = transformer(w, side, "transformer", x, c["num_hidden_layers"], heads, inner, eps, act, False)
    x = w.layer_norm(side.place + "layernorm_post", x, 1e-5)
    x = tiled(x.unflatten(1, (TILES, count)), "post").flatten(1, 2)
    x, _ = transformer(w, side, "global_transformer", x, c["num_global_layers"], heads, inner, eps, act, True)
    kept = torch.stack([outputs[i] for i in c["intermediate_layers_indices"]], -1).flatten(-2)
    return torch.cat([x, kept], -1)


def hugging_face(w, c, ids, images, shapes):
    t, v = c["text_config"], c["vision_config"]
    kernel = w.get("model.vision_model.patch_embedding.weight", v["hidden_size"], 3, v["patch_size"], v["patch_size"], std=0.2)
    patches = F.conv2d(images.flatten(0, 1), kernel, stride=v["patch_size"]).flatten(2).transpose(1, 2).unflatten(0, (-1, TILES))
    seen = vision(w, HF_SIDE, patches, shapes, v, v["attention_heads"], v["intermediate_size"], v.get("norm_eps", 1e-5),
                  v.get("hidden_act", "gelu"))
    width, heads, key_heads, eps = t["hidden_size"], t["num_attention_heads"], t["num_key_value_heads"], t.get("rms_norm_eps", 1e-5)
    seen = w.linear("model.multi_modal_projector", seen, width)
    size, name = width // heads, "model.language_model."
    x = w.embedding(name + "embed_tokens", ids, t["vocab_size"] + 8, width)
    angle = angles(ids.shape[1], size, t.get("rope_theta", 500000.0))
    for i in range(t["num_hidden_layers"]):
        layer, is_cross = f"{name}layers.{i}.", i in t["cross_attention_layers"]
        part = layer + ("cross_attn." if is_cross else "self_attn.")
        normed = w.rms_norm(layer + "input_layernorm", x, eps)
        source = seen if is_cross else normed
        q = split(w.linear(part + "q_proj", normed, width, False), heads)
        k, v = (split(w.linear(f"{part}{one}_proj", source, key_heads * size, False), key_heads) for one in "kv")
        if is_cross:
            q, k = w.rms_norm(part + "q_norm", q, eps), w.rms_norm(part + "k_norm", k, eps)
        else:
            q, k = rotate_halves(q, angle), rotate_halves(k, angle)
        out = w.linear(part + "o_proj", attention(q, k, v, size ** -0.5, causal=not is_cross), width, False)
        x = x + (out * w.get(layer + "cross_attn_attn_gate", 1).tanh() if is_cross else out)
        normed = w.rms_norm(layer + "post_attention_layernorm", x, eps)
        hidden = ACTIVATIONS[t.get("hidden_act", "silu")](w.linear(layer + "mlp.gate_proj", normed, t["intermediate_size"], False))
        out = w.linear(layer + "mlp.down_proj", hidden * w.linear(layer + "mlp.up_proj", normed, t["intermediate_size"], False), width, False)
        x = x + (out * w.get(layer + "cross_attn_mlp_gate", 1).tanh() if is_cross else out)
    tied = name + "embed_tokens.weight" if t.get("tie_word_embeddings", False) else None
    return w.head("lm_head", w.rms_norm(name + "norm", x, eps), t["vocab_size"], tied)


def model_zoo(w, c, ids, images, shapes):
    t, v = c["text_model"], c["image_model"]
    side = v["patch_size"][0]
    rows = images.flatten(0, 1).unfold(2, side, side).unfold(3, side, side)  # (images, channels, rows, columns, side, side)
    flat = rows.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)
    patches = w.linear("image_model.patch_embedding", flat, v["hidden_size"], False).unflatten(0, (-1, TILES))
    seen = vision(w, ZOO_SIDE, patches, shapes, v, v["num_heads"], v["filter_size"], v["layer_norm_epsilon"], v["nonlinearity"])
    width, heads, eps = t["hidden_size"], t["num_heads"], t["layer_norm_epsilon"]
    key_heads = t["extra_attention_params"]["num_kv_groups"] if t["attention_module"] == "multiquery_attention" else heads
    seen = w.linear("projection", seen, width)
    size, name = width // heads, "text_model.model."
    x = w.embedding(name + "embedding_layer.word_embeddings", ids, t["vocab_size"] + t["num_extra_input_vocab_tokens"], width)
    angle = rotary_angles(t, ids.shape[1])
    for i in range(t["num_hidden_layers"]):
        layer, is_cross = f"{name}transformer_decoder.layers.{i}", i in t["cross_attention_layers"]
        part = layer + (".multihead_attn." if is_cross else ".self_attn.")
        normed = w.rms_norm(layer + ".norm1", x, eps)
        source = seen if is_cross else normed
        q = split(w.linear(part + "proj_q_dense_layer", normed, width, False), heads)
        k, v = (split(w.linear(f"{part}proj_{one}_dense_layer", source, key_heads * size, False), key_heads) for one in "kv")
        if is_cross:
            q, k = w.rms_norm(part + "q_norm", q, eps), w.rms_norm(part + "k_norm", k, eps)
        else:
            q, k = rotate_pairs(q, angle), rotate_pairs(k, angle)
        out = w.linear(part + "proj_output_dense_layer", attention(q, k, v, size ** -0.5, causal=not is_cross), width, False)
        x = x + (out * w.get(layer + ".cross_attn_attn_gate", 1).tanh() if is_cross else out)
        out = feed_forward(w, layer, w.rms_norm(layer + ".norm3", x, eps), t["filter_size"], t["nonlinearity"], False)
        x = x + (out * w.get(layer + ".cross_attn_mlp_gate", 1).tanh() if is_cross else out)
    x = w.rms_norm(name + "ln_f", x, eps)
    w.again(name + "ln_f.weight", name + "transformer_decoder.norm.weight")
    return w.head(name + "lm_head", x, t["vocab_size"])


CASES = {
    "an image in two tiles": {"hf": {
        "model_type": "mllama",
        "text_config": {
            "model_type": "mllama_text_model", "vocab_size": 19, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
            "num_hidden_layers": 3, "intermediate_size": 24, "max_position_embeddings": 32, "cross_attention_layers": [1],
            "pad_token_id": 3, "rms_norm_eps": 0.1, "rope_theta": 50.0, "hidden_act": "silu", "tie_word_embeddings": False},
        "vision_config": {
            "model_type": "mllama_vision_model", "hidden_size": 16, "attention_heads": 2, "num_hidden_layers": 2, "num_global_layers": 1,
            "intermediate_size": 24, "vision_output_dim": 48, "image_size": 8, "patch_size": 4, "max_num_tiles": TILES,
            "supported_aspect_ratios": [[1, 1], [1, 2]], "intermediate_layers_indices": [0, 1], "num_channels": 3, "norm_eps": 0.1,
            "hidden_act": "gelu"}}},
}
