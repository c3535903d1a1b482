"""ViT and DINOv2: patches of an image behind a class token, norms before each part; DINOv2 scales each part's output."""
import torch
import torch.nn.functional as F

from .layers import ACTIVATIONS, attention, split
from .zoo import feed_forward

MODEL = "vit"
COMPUTED = False


def inputs(random):
    return (torch.randn(2, 3, 8, 8, generator=random),)


def hugging_face_body(w, c, name, images):
    """Hidden states behind the last norm."""
    width, heads, patch = c["hidden_size"], c["num_attention_heads"], c["patch_size"]
    eps, is_dino = c.get("layer_norm_eps", 1e-12 if c["model_type"] == "vit" else 1e-6), c["model_type"] == "dinov2"
    norms = ("norm1", "norm2") if is_dino else ("layernorm_before", "layernorm_after")
    projection = name + "embeddings.patch_embeddings.projection"
    kernel = w.get(projection + ".weight", width, 3, patch, patch, std=(3 * patch * patch) ** -0.5)
    x = F.conv2d(images, kernel, w.bias(projection, width), stride=patch).flatten(2).transpose(1, 2)
    x = torch.cat([w.get(name + "embeddings.cls_token", 1, 1, width).expand(len(x), 1, width), x], 1)
    x = x + w.get(name + "embeddings.position_embeddings", 1, x.shape[1], width)
    if is_dino:
        w.get(name + "embeddings.mask_token", 1, width)
    for i in range(c["num_hidden_layers"]):
        layer = f"{name}encoder.layer.{i}."

        def scaled(part, out, layer=layer):
            return out * w.get(f"{layer}layer_scale{part}.lambda1", width) if is_dino else out
        normed = w.layer_norm(layer + norms[0], x, eps)
        q, k, v = (split(w.linear(f"{layer}attention.attention.{part}", normed, width), heads) for part in ("query", "key", "value"))
        out = attention(q, k, v, (width // heads) ** -0.5)
        x = x + scaled(1, w.linear(layer + "attention.output.dense", out, width))
        normed = w.layer_norm(layer + norms[1], x, eps)
        act = ACTIVATIONS[c.get("hidden_act", "gelu")]
        if not is_dino:
            inner = act(w.linear(layer + "intermediate.dense", normed, c["intermediate_size"]))
            out = w.linear(layer + "output.dense", inner, width)
        elif c.get("use_swiglu_ffn", False):
            size = (int(int(width * c.get("mlp_ratio", 4)) * 2 / 3) + 7) // 8 * 8
            a, b = w.linear(layer + "mlp.weights_in", normed, 2 * size).chunk(2, -1)
            out = w.linear(layer + "mlp.weights_out", F.silu(a) * b, width)
        else:
            out = w.linear(layer + "mlp.fc2", act(w.linear(layer + "mlp.fc1", normed, int(width * c.get("mlp_ratio", 4)))), width)
        x = x + scaled(2, out)
    return w.layer_norm(name + "layernorm", x, eps)


def pooled(x, has_mean):
    return torch.cat([x[:, 0], x[:, 1:].mean(1)], -1) if has_mean else x[:, 0]


def hugging_face(w, c, images):
    x = hugging_face_body(w, c, c["model_type"] + ".", images)
    return w.linear("classifier", pooled(x, c["model_type"] == "dinov2"), c["num_labels"])


def model_zoo_body(w, c, images):
    width, heads, patch, eps = c["hidden_size"], c["num_heads"], c["patch_size"][0], c.get("layer_norm_epsilon", 1e-5)
    projection, encoder = "vit_model.embedding_layer.linear_proj", "vit_model.encoder.transformer_encoder."
    kernel = w.get(projection + ".weight", width, 3, patch, patch, std=(3 * patch * patch) ** -0.5)
    x = F.conv2d(images, kernel, w.bias(projection, width), stride=patch).flatten(2).transpose(1, 2)
    rows = w.get("vit_model.embedding_layer.position_embeddings.weight", x.shape[1] + 1, width)  # the class token's is the last
    token = w.get("vit_model.embedding_layer.cls_embedding", width) + rows[-1]
    x = torch.cat([token.expand(len(x), 1, width), x + rows[:-1]], 1)
    if c.get("use_masked_patches", False):
        w.get("vit_model.embedding_layer.mask_token", width)
    for i in range(c["num_hidden_layers"]):
        layer = f"{encoder}layers.{i}"

        def scaled(part, out, layer=layer):
            return out if c.get("layerscale_value") is None else out * w.get(f"{layer}.layer_scale{part}", width)
        normed = w.layer_norm(layer + ".norm1", x, eps)
        q, k, v = (split(w.linear(f"{layer}.self_attn.proj_{part}_dense_layer", normed, width), heads) for part in "qkv")
        out = attention(q, k, v, (width // heads) ** -0.5)
        x = x + scaled(1, w.linear(layer + ".self_attn.proj_output_dense_layer", out, width))
        normed = w.layer_norm(layer + ".norm2", x, eps)
        x = x + scaled(2, feed_forward(w, layer, normed, c["filter_size"], c.get("nonlinearity", "gelu"), True))
    return w.layer_norm(encoder + "norm", x, eps)


def model_zoo(w, c, images):
    x = pooled(model_zoo_body(w, c, images), c.get("use_dinov2_classifier", False))
    return w.linear("classifier.classifier.ffn.0.linear_layer", x, c["num_classes"])


def headless(w, c, images):
    return hugging_face_body(w, c, "", images)


def headless_model_zoo(w, c, images):
    x = model_zoo_body(w, c, images)
    w.linear("classifier.classifier.ffn.0.linear_layer", pooled(x, c.get("use_dinov2_classifier", False)), c["num_classes"])
    return x


HF = {"model_type": "vit", "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 24, "image_size": 8,
      "patch_size": 2, "layer_norm_eps": 0.1, "num_labels": 5}
DINO = {"model_type": "dinov2", "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2, "mlp_ratio": 2, "image_size": 8,
        "patch_size": 2, "layer_norm_eps": 0.1, "num_labels": 5}
CASES = {
    "a class": {"hf": HF},
    "relu": {"hf": {**HF, "hidden_act": "relu"}},
    "hidden states": {"model": "vit-headless", "hf": HF, "hugging_face": headless, "model_zoo": headless_model_zoo},
    "DINOv2": {"model": "dinov2", "hf": DINO},
    "DINOv2 with gates": {"model": "dinov2", "hf": {**DINO, "use_swiglu_ffn": True, "mlp_ratio": 4, "layerscale_value": 0.1}},
    "DINOv2, hidden states": {"model": "dinov2-headless", "hf": DINO, "hugging_face": headless, "model_zoo": headless_model_zoo},
}
