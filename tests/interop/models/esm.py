"""ESM-2: an encoder with norms before each part, rotary positions or those of RoBERTa, and masked tokens without an embedding."""
import torch

from .layers import ACTIVATIONS, angles, attention, rotate_halves, rotate_pairs, split
from .roberta import PAD, positions
from .zoo import feed_forward

MODEL = "esm-2"
COMPUTED = False
BUFFERS = r"\.position_ids"
MASK = 4


def inputs(random):
    ids = torch.randint(3, 19, (2, 9), generator=random)
    ids[:, 2] = MASK
    ids[0, 6] = MASK
    return (ids,)


def without_masked(x, ids, mask):
    """Masked tokens are zeros; the others are larger for it, by the share that training masks (12 %) and the one that is masked here."""
    observed = (ids == mask).float().mean(-1)[:, None, None]
    return x.masked_fill((ids == mask)[..., None], 0) * (1 - 0.15 * 0.8) / (1 - observed)


def hugging_face(w, c, ids):
    width, heads, eps, kind = c["hidden_size"], c["num_attention_heads"], c.get("layer_norm_eps", 1e-12), c.get("position_embedding_type", "absolute")
    x = w.embedding("esm.embeddings.word_embeddings", ids, c["vocab_size"], width)
    if c.get("token_dropout", False):
        x = without_masked(x, ids, c["mask_token_id"])
    if kind == "absolute":
        x = x + w.embedding("esm.embeddings.position_embeddings", positions(ids, c["pad_token_id"]), c.get("max_position_embeddings", 1026), width)
    if c.get("emb_layer_norm_before"):
        x = w.layer_norm("esm.embeddings.layer_norm", x, eps)
    angle = angles(ids.shape[1], width // heads, 10000.0)
    for i in range(c["num_hidden_layers"]):
        layer = f"esm.encoder.layer.{i}."
        normed = w.layer_norm(layer + "attention.LayerNorm", x, eps)
        q, k, v = (split(w.linear(f"{layer}attention.self.{part}", normed, width), heads) for part in ("query", "key", "value"))
        if kind == "rotary":
            q, k = rotate_halves(q, angle), rotate_halves(k, angle)
        x = x + w.linear(layer + "attention.output.dense", attention(q, k, v, (width // heads) ** -0.5), width)
        normed = w.layer_norm(layer + "LayerNorm", x, eps)
        hidden = ACTIVATIONS["gelu"](w.linear(layer + "intermediate.dense", normed, c.get("intermediate_size", 3072)))
        x = x + w.linear(layer + "output.dense", hidden, width)
    x = w.layer_norm("esm.encoder.emb_layer_norm_after", x, eps)
    words = w.layer_norm("lm_head.layer_norm", ACTIVATIONS["gelu"](w.linear("lm_head.dense", x, width)), eps)
    tied = "esm.embeddings.word_embeddings.weight" if c.get("tie_word_embeddings", True) else None
    return w.head("lm_head.decoder", words, c["vocab_size"], tied) + w.bias("lm_head", c["vocab_size"])


def model_zoo(w, c, ids):
    width, heads, eps, kind = c["hidden_size"], c["num_heads"], c.get("layer_norm_epsilon", 1e-5), c.get("position_embedding_type", "learned")
    embedding = "bert_encoder.embedding_layer."
    x = w.embedding(embedding + "word_embeddings", ids, c["vocab_size"], width)
    if c.get("token_dropout", False):
        x = without_masked(x, ids, c["mask_token_id"])
    if kind == "learned":
        pad = c.get("pad_token_id", 0)
        x = x + w.embedding(embedding + "position_embeddings.embed", positions(ids, pad), c["max_position_embeddings"] + pad + 1, width)
    if c.get("embedding_layer_norm", True):
        x = w.layer_norm("bert_encoder.embed_ln_f", x, eps)
    angle = angles(ids.shape[1], c["rotary_dim"], c.get("rope_theta", 10000.0)) if kind == "rotary" else None
    for i in range(c["num_hidden_layers"]):
        layer = f"bert_encoder.transformer_encoder.layers.{i}"
        normed = w.layer_norm(layer + ".norm1", x, eps)
        q, k, v = (split(w.linear(f"{layer}.self_attn.proj_{part}_dense_layer", normed, width), heads) for part in "qkv")
        if kind == "rotary":
            q, k = rotate_pairs(q, angle), rotate_pairs(k, angle)
        x = x + w.linear(layer + ".self_attn.proj_output_dense_layer", attention(q, k, v, (width // heads) ** -0.5), width)
        normed = w.layer_norm(layer + ".norm2", x, eps)
        x = x + feed_forward(w, layer, normed, c["filter_size"], c.get("encoder_nonlinearity", "gelu"), True)
    x = w.layer_norm("bert_encoder.transformer_encoder.norm", x, eps)
    act = ACTIVATIONS[c.get("mlm_nonlinearity") or c.get("encoder_nonlinearity", "gelu")]
    words = act(w.linear("bert_mlm_head.mlm_transform.ffn.ffn.0.linear_layer", x, width))
    words = w.layer_norm("bert_mlm_head.mlm_transform.ln", words, eps)
    tied = "bert_encoder.embedding_layer.word_embeddings.weight" if c.get("share_embedding_weights", True) else None
    return w.head("bert_mlm_head.classifier.ffn.0.linear_layer", words, c["vocab_size"], tied, bias=True)


HF = {"model_type": "esm", "vocab_size": 19, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "pad_token_id": PAD,
      "mask_token_id": MASK, "intermediate_size": 24, "max_position_embeddings": 14, "layer_norm_eps": 0.1, "hidden_act": "gelu"}
CASES = {
    "positions of RoBERTa": {"hf": HF, "keep": ("pad_token_id",)},
    "rotary, as the published ones": {"hf": {**HF, "position_embedding_type": "rotary", "token_dropout": True, "emb_layer_norm_before": False},
                                      "keep": ("pad_token_id", "position_embedding_type")},
    "rotary, untied, norm before": {"hf": {**HF, "position_embedding_type": "rotary", "tie_word_embeddings": False, "emb_layer_norm_before": True},
                                    "keep": ("pad_token_id", "position_embedding_type")},
}
