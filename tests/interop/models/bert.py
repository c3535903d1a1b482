"""BERT with its two heads of pre-training: norms behind each part, a pooler over the first token."""
import torch

from .layers import ACTIVATIONS, attention, split, unpadded
from .zoo import feed_forward, logits_scale

MODEL = "bert"
INPUTS = ("input_ids", "token_type_ids")
RELEASES = ["cs-1.6", "cs-1.8"]  # from 1.6 by the table of 1.7
BUFFERS = r"\.position_ids"  # a constant that old Hugging Face files hold


def inputs(random):
    return torch.randint(19, (2, 7), generator=random), torch.randint(2, (2, 7), generator=random)


def hugging_face_encoder(w, c, ids, segments, name="bert.", positions=None):
    """`name` is what the names of tensors begin with."""
    width, heads, eps = c["hidden_size"], c["num_attention_heads"], c.get("layer_norm_eps", 1e-12)
    x = w.embedding(name + "embeddings.word_embeddings", ids, c["vocab_size"], width)
    positions = torch.arange(ids.shape[1]) if positions is None else positions
    x = x + w.embedding(name + "embeddings.position_embeddings", positions, c["max_position_embeddings"], width)
    x = x + w.embedding(name + "embeddings.token_type_embeddings", segments, c.get("type_vocab_size", 2), width)
    x = w.layer_norm(name + "embeddings.LayerNorm", x, eps)
    for i in range(c["num_hidden_layers"]):
        layer = f"{name}encoder.layer.{i}."
        q, k, v = (split(w.linear(f"{layer}attention.self.{part}", x, width), heads) for part in ("query", "key", "value"))
        out = w.linear(layer + "attention.output.dense", attention(q, k, v, (width // heads) ** -0.5), width)
        x = w.layer_norm(layer + "attention.output.LayerNorm", x + out, eps)
        hidden = ACTIVATIONS[c.get("hidden_act", "gelu")](w.linear(layer + "intermediate.dense", x, c["intermediate_size"]))
        x = w.layer_norm(layer + "output.LayerNorm", x + w.linear(layer + "output.dense", hidden, width), eps)
    return x


def hugging_face_pooler(w, x):
    return w.linear("bert.pooler.dense", x[:, 0], x.shape[-1]).tanh()


def hugging_face(w, c, ids, segments):
    x = hugging_face_encoder(w, c, ids, segments)
    words = ACTIVATIONS[c.get("hidden_act", "gelu")](w.linear("cls.predictions.transform.dense", x, c["hidden_size"]))
    words = w.layer_norm("cls.predictions.transform.LayerNorm", words, c.get("layer_norm_eps", 1e-12))
    tied = "bert.embeddings.word_embeddings.weight" if c.get("tie_word_embeddings", True) else None
    logits = w.head("cls.predictions.decoder", words, c["vocab_size"], tied, bias=True)
    w.again("cls.predictions.decoder.bias", "cls.predictions.bias")
    return logits, w.linear("cls.seq_relationship", hugging_face_pooler(w, x), 2)


def model_zoo_encoder(w, c, name, ids, segments, positions=None, offset=0, mask=None):
    width, heads, eps = c["hidden_size"], c["num_heads"], c.get("layer_norm_epsilon", 1e-5)
    embedding = name + ".embedding_layer."
    x = w.embedding(embedding + "word_embeddings", ids, c["vocab_size"], width, padding=c.get("pad_token_id", 0))
    positions = torch.arange(ids.shape[1]) if positions is None else positions
    x = x + w.embedding(embedding + "position_embeddings.embed", positions, c["max_position_embeddings"] + offset, width)
    if segments is not None:
        x = x + w.embedding(embedding + "segment_embeddings", segments, c.get("num_segments", 2), width)
    x = w.layer_norm(name + ".embed_ln_f", x * c.get("embeddings_scale", 1.0), eps)
    scale = (width // heads) ** (-1 if c.get("scale_qk_dot_by_d", bool(c.get("mup_base_hidden_size"))) else -0.5)
    for i in range(c["num_hidden_layers"]):
        layer = f"{name}.transformer_encoder.layers.{i}"
        q, k, v = (split(w.linear(f"{layer}.self_attn.proj_{name}_dense_layer", x, width), heads) for name in "qkv")
        out = attention(q, k, v, scale * c.get("attention_logits_alpha", 1.0), unpadded(mask))
        x = w.layer_norm(layer + ".norm1", x + w.linear(layer + ".self_attn.proj_output_dense_layer", out, width), eps)
        hidden = feed_forward(w, layer, x, c["filter_size"], c.get("encoder_nonlinearity", "gelu"), True)
        x = w.layer_norm(layer + ".norm2", x + hidden, eps)
    return x


def model_zoo_pooler(w, c, name, x):
    pooled = w.linear(name + ".pooler.pooler.ffn.0.linear_layer", x[:, 0], x.shape[-1])
    return ACTIVATIONS[c.get("pooler_nonlinearity") or c.get("encoder_nonlinearity", "gelu")](pooled)


def model_zoo(w, c, ids, segments, mask=None):
    width, act = c["hidden_size"], c.get("encoder_nonlinearity", "gelu")
    x = model_zoo_encoder(w, c, "bert_encoder", ids, segments, mask=mask)
    pooled = model_zoo_pooler(w, c, "bert_encoder", x)
    words = ACTIVATIONS[c.get("mlm_nonlinearity") or act](w.linear("bert_mlm_head.mlm_transform.ffn.ffn.0.linear_layer", x, width))
    words = w.layer_norm("bert_mlm_head.mlm_transform.ln", words, c.get("layer_norm_epsilon", 1e-5))
    tied = "bert_encoder.embedding_layer.word_embeddings.weight" if c.get("share_embedding_weights", True) else None
    logits = w.head("bert_mlm_head.classifier.ffn.0.linear_layer", words, c["vocab_size"], tied, bias=True)
    return logits * logits_scale(c, width), w.linear("bert_cls_head.classifier.ffn.0.linear_layer", pooled, 2) * logits_scale(c, width)


HF = {"model_type": "bert", "vocab_size": 19, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2,
      "intermediate_size": 24, "max_position_embeddings": 9, "layer_norm_eps": 0.1}
CS = {"vocab_size": 19, "hidden_size": 16, "num_heads": 4, "num_hidden_layers": 2, "filter_size": 24, "max_position_embeddings": 9,
      "layer_norm_epsilon": 0.1, "encoder_nonlinearity": "gelu", "pooler_nonlinearity": "tanh", "mlm_nonlinearity": "gelu",
      "position_embedding_type": "learned", "dropout_rate": 0.1, "attention_dropout_rate": 0.1}
CASES = {
    # up to 1.7 the pooler has the encoder's activation, as a warning says
    "tied": {"hf": HF, "outputs": {"cs-1.6": 1}, "one_way": {"cs-1.6": "pooler_nonlinearity='gelu'"}},
    "classifier of its own, relu": {"hf": {**HF, "tie_word_embeddings": False, "hidden_act": "relu"}, "releases": ["cs-1.8"]},
    "muP": {"cs": {**CS, "mup_base_hidden_size": 4, "mup_base_filter_size": 6, "scale_qk_dot_by_d": True, "embeddings_scale": 3.0,
                   "attention_logits_alpha": 2.5, "output_logits_alpha": 3.0}},
    "muP, untied, by the root": {"cs": {**CS, "mup_base_hidden_size": 4, "mup_base_filter_size": 6, "scale_qk_dot_by_d": False,
                                        "scale_output_logits_by_d": False, "share_embedding_weights": False}},
}
