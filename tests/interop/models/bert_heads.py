"""BERT with a head of fine-tuning: one linear layer over the pooled first token, or over every token (without a pooler)."""
from .bert import HF, hugging_face_encoder, hugging_face_pooler, inputs, model_zoo_encoder, model_zoo_pooler  # noqa: F401  inputs

MODEL = "bert-qa"
INPUTS = ("input_ids", "token_type_ids")
RELEASES = ["cs-1.8"]
BUFFERS = r"\.position_ids"


def hugging_face(head, count, pooled=False):
    def forward(w, c, ids, segments):
        x = hugging_face_encoder(w, c, ids, segments)
        return w.linear(head, hugging_face_pooler(w, x) if pooled else x, count)
    return forward


def model_zoo(count, pooled=False):
    def forward(w, c, ids, segments, mask=None):
        x = model_zoo_encoder(w, c, "bert", ids, segments, mask=mask)
        return w.linear("classifier", model_zoo_pooler(w, c, "bert", x) if pooled else x, count)
    return forward


CASES = {
    "spans that answer": {"computed": False, "hf": HF, "hugging_face": hugging_face("qa_outputs", 2), "model_zoo": model_zoo(2)},
    "classes of tokens": {"model": "bert-token-classifier", "computed": False, "hf": {**HF, "num_labels": 3},
                          "hugging_face": hugging_face("classifier", 3), "model_zoo": model_zoo(3)},
    "classes of sequences": {"model": "bert-sequence-classifier",
                             "hf": {**HF, "num_labels": 3, "problem_type": "single_label_classification"},
                             "hugging_face": hugging_face("classifier", 3, True), "model_zoo": model_zoo(3, True)},
    # up to 1.7 the pooler has the encoder's activation
    "classes of sequences, tanh": {
        "model": "bert-sequence-classifier", "releases": ["cs-1.6"], "one_way": {"cs-1.6": "mlm_nonlinearity='gelu'"},
        "keep": tuple(HF),
        "hf": {**HF, "num_labels": 3, "problem_type": "single_label_classification", "hidden_act": "tanh"},
        "hugging_face": hugging_face("classifier", 3, True), "model_zoo": model_zoo(3, True)},
}
