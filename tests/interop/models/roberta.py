"""RoBERTa: BERT with positions that skip padding, which has a row of its own, and no next-sentence head."""
import torch

from .bert import hugging_face_encoder, model_zoo_encoder
from .layers import ACTIVATIONS

MODEL = "roberta"
COMPUTED = False
RELEASES = ["cs-2.0"]
BUFFERS = r"\.position_ids"
PAD = 2


def inputs(random):
    ids = torch.randint(3, 19, (2, 7), generator=random)
    ids[1, 5:] = PAD
    return ids, torch.randint(2, (2, 7), generator=random)


def positions(ids, pad):
    """Padding is at the row of its number, other tokens behind it."""
    mask = (ids != pad).long()
    return mask.cumsum(1) * mask + pad


def hugging_face(w, c, ids, segments):
    pad, eps = c.get("pad_token_id", 1), c.get("layer_norm_eps", 1e-12)
    x = hugging_face_encoder(w, c, ids, segments % c.get("type_vocab_size", 2), "roberta.", positions(ids, pad))
    words = ACTIVATIONS["gelu"](w.linear("lm_head.dense", x, c["hidden_size"]))
    words = w.layer_norm("lm_head.layer_norm", words, eps)
    tied = "roberta.embeddings.word_embeddings.weight" if c.get("tie_word_embeddings", True) else None
    logits = w.head("lm_head.decoder", words, c["vocab_size"], tied, bias=True)
    w.again("lm_head.decoder.bias", "lm_head.bias")
    return logits


def model_zoo(w, c, ids, segments):
    pad = c.get("pad_token_id", 0)
    count = c.get("num_segments", 0)
    x = model_zoo_encoder(w, c, "bert_encoder", ids, segments % count if count else None, positions(ids, pad), pad + 1)
    words = w.linear("bert_mlm_head.mlm_transform.ffn.ffn.0.linear_layer", x, c["hidden_size"])
    words = w.layer_norm("bert_mlm_head.mlm_transform.ln", ACTIVATIONS[c["mlm_nonlinearity"]](words), c.get("layer_norm_epsilon", 1e-5))
    tied = "bert_encoder.embedding_layer.word_embeddings.weight" if c.get("share_embedding_weights", True) else None
    return w.head("bert_mlm_head.classifier.ffn.0.linear_layer", words, c["vocab_size"], tied, bias=True)


HF = {"model_type": "roberta", "vocab_size": 19, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2, "pad_token_id": PAD,
      "intermediate_size": 24, "max_position_embeddings": 12, "layer_norm_eps": 0.1}
CS = {"vocab_size": 19, "hidden_size": 16, "num_heads": 4, "num_hidden_layers": 2, "filter_size": 24, "max_position_embeddings": 9,
      "layer_norm_epsilon": 0.1, "encoder_nonlinearity": "gelu", "pooler_nonlinearity": "tanh", "mlm_nonlinearity": "gelu",
      "mask_padding_in_positional_embed": True, "disable_nsp": True, "pad_token_id": PAD, "dropout_rate": 0.1,
      "position_embedding_type": "learned", "attention_dropout_rate": 0.1}
CASES = {
    "tied": {"hf": HF, "keep": ("pad_token_id",)},
    "classifier of its own, relu": {"hf": {**HF, "tie_word_embeddings": False, "hidden_act": "relu"}, "keep": ("pad_token_id",)},
    "no segments": {"cs": CS, "keep": ("pad_token_id", "mlm_nonlinearity")},
}
