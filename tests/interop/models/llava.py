"""LLaVA: what CLIP's image tower makes of an image takes the place of tokens behind the first one; a small feed-forward part between."""
import torch
import torch.nn.functional as F

from . import llama
from .layers import ACTIVATIONS, attention, split
from .zoo import feed_forward, gpt2_lm_head_model

MODEL = "llava"
COMPUTED = False
FOLDERS = ("image_model", "text_model")
BUFFERS = r"\.(position_ids|rotary_emb\.inv_freq)"
LARGE = 1000.0  # of embeddings: the norm behind them has another epsilon in the Model Zoo, as a warning says


def inputs(random):
    return torch.randint(19, (2, 9), generator=random), torch.randn(2, 3, 8, 8, generator=random)


def patches_of(w, name, width, patch, images):
    kernel = w.get(name + ".weight", width, 3, patch, patch, std=LARGE * (3 * patch * patch) ** -0.5)
    return F.conv2d(images, kernel, stride=patch).flatten(2).transpose(1, 2)


def self_attention(w, name, parts, x, heads):
    width = x.shape[-1]
    q, k, v = (split(w.linear(f"{name}.{part}", x, width), heads) for part in parts[:3])
    return w.linear(f"{name}.{parts[3]}", attention(q, k, v, (width // heads) ** -0.5), width)


def hugging_face_tower(w, c, images):
    """The embeddings and what each layer makes of them."""
    width, eps, name = c["hidden_size"], c.get("layer_norm_eps", 1e-5), "vision_model."
    x = patches_of(w, name + "embeddings.patch_embedding", width, c["patch_size"], images)
    x = torch.cat([w.get(name + "embeddings.class_embedding", width, std=LARGE).expand(len(x), 1, width), x], 1)
    x = x + w.get(name + "embeddings.position_embedding.weight", x.shape[1], width, std=LARGE)
    states = [w.layer_norm(name + "pre_layrnorm", x, eps)]
    for i in range(c["num_hidden_layers"]):
        x, layer = states[-1], f"{name}encoder.layers.{i}."
        normed = w.layer_norm(layer + "layer_norm1", x, eps)
        x = x + self_attention(w, layer + "self_attn", ("q_proj", "k_proj", "v_proj", "out_proj"), normed, c["num_attention_heads"])
        hidden = w.linear(layer + "mlp.fc1", w.layer_norm(layer + "layer_norm2", x, eps), c["intermediate_size"])
        states.append(x + w.linear(layer + "mlp.fc2", ACTIVATIONS[c.get("hidden_act", "quick_gelu")](hidden), width))
    w.layer_norm(name + "post_layernorm", x, eps)  # nothing is made of it
    return states


def projected(w, names, x, width):
    """The Linears of the projector, with activations between them."""
    for name in names[:-1]:
        x = F.gelu(w.linear(name, x, width))
    return w.linear(names[-1], x, width)


def among_tokens(features, mode):
    """The first token stays, the image's features replace those behind it. Only one mode has the class token among them."""
    features = features[:, 1:] if mode == "patch" else features
    return lambda x: torch.cat([x[:, :1], features, x[:, 1 + features.shape[1]:]], 1)


def hugging_face(w, c, ids, images):
    c, states = c["text_model"], hugging_face_tower(w.below("image_model/"), c["image_model"], images)
    w, count = w.below("text_model/"), int(c.get("mm_projector_type", "mlp2x_gelu")[3:-6])
    names = [f"model.mm_projector.{2 * i}" for i in range(count)]
    features = projected(w, names, states[c.get("mm_vision_select_layer", -2)], c["hidden_size"])
    return llama.hugging_face(w, c, ids, place=among_tokens(features, c.get("mm_vision_select_feature", "patch")))


def model_zoo_tower(w, c, images):
    """What each layer makes of the embeddings, whose norm has an epsilon of its own."""
    width, eps = c["hidden_size"], c.get("layer_norm_epsilon", 1e-5)
    x = patches_of(w, "embedding_layer.linear_proj", width, c["patch_size"][0], images)
    rows = w.get("embedding_layer.position_embeddings.weight", x.shape[1] + 1, width, std=LARGE)  # the class token's is the last
    token = w.get("embedding_layer.cls_embedding", width, std=LARGE) + rows[-1]
    x = w.layer_norm("embedding_layer.post_embed_ln", torch.cat([token.expand(len(x), 1, width), x + rows[:-1]], 1), 1e-5)
    states = []
    for i in range(c["num_hidden_layers"]):
        layer = f"encoder.transformer_encoder.layers.{i}"
        parts = [f"proj_{part}_dense_layer" for part in ("q", "k", "v", "output")]
        x = x + self_attention(w, layer + ".self_attn", parts, w.layer_norm(layer + ".norm1", x, eps), c["num_heads"])
        normed = w.layer_norm(layer + ".norm2", x, eps)
        x = x + feed_forward(w, layer, normed, c["filter_size"], c.get("nonlinearity", "gelu"), True)
        states.append(x)
    w.layer_norm("encoder.transformer_encoder.norm", x, eps)
    return states


def with_image(w, tower, c, image, layer, mode, projector, projection, ids, images):
    states, units = model_zoo_tower(w.below(tower), image, images), projection["layers_units"]
    features = projected(w, [f"{projector}.ffn.{i}.linear_layer" for i in range(len(units))], states[layer], units[-1])
    return gpt2_lm_head_model(w.below("text_model."), c["text_model"], ids, among_tokens(features, mode))


def model_zoo(w, c, ids, images):
    assert c["image_start_idx"] == 1
    return with_image(w, "image_model.", c, c["image_model"], c["image_feature_select_layer_idx"], c["image_feature_select_mode"],
                      "projector_image_model", c["projector"]["image_model"], ids, images)


IMAGE = {"model_type": "clip_vision_model", "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 24,
         "image_size": 8, "patch_size": 4, "layer_norm_eps": 0.1, "hidden_act": "gelu", "num_channels": 3, "attention_dropout": 0.0}
TEXT = {**llama.HF, "model_type": "llava", "mm_hidden_size": 16, "mm_projector_type": "mlp2x_gelu", "mm_vision_select_layer": -2,
        "mm_vision_select_feature": "patch", "tune_mm_mlp_adapter": False}
WARNING = "the norm behind the embeddings always uses 1e-05"
KEEP = ("mm_hidden_size", "rope_theta")
CASES = {
    "patches": {"hf": {"image_model": IMAGE, "text_model": TEXT}, "warning": WARNING, "keep": KEEP},
    "the class token, the last layer, three Linears": {"hf": {"image_model": {**IMAGE, "hidden_act": "quick_gelu"}, "text_model": {
        **TEXT, "mm_vision_select_feature": "cls_patch", "mm_vision_select_layer": -1, "mm_projector_type": "mlp3x_gelu",
        "num_key_value_heads": 2}}, "warning": WARNING, "keep": KEEP},
    "a layer by its number": {"hf": {"image_model": IMAGE, "text_model": {**TEXT, "mm_vision_select_layer": 1}}, "warning": WARNING,
                              "keep": KEEP},
}
