"""DPR: a BERT for questions and one for texts; a text's score is the product of what both make of their first tokens."""
from . import bert
from .bert import hugging_face_encoder, model_zoo_encoder

MODEL = "dpr"
COMPUTED = False
FOLDERS = ("q_encoder", "ctx_encoder")
RELEASES = ["cs-2.2", "cs-2.3"]
BUFFERS = r"\.position_ids"


def inputs(random):
    return (*bert.inputs(random), *bert.inputs(random))


def outputs(questions, texts):
    return questions, texts, questions @ texts.T


def hugging_face(w, c, questions, kinds, texts, other_kinds, names=("question_encoder.bert_model.", "ctx_encoder.bert_model.")):
    first = hugging_face_encoder(w.below("q_encoder/"), c["q_encoder"], questions, kinds, names[0])
    return outputs(first[:, 0], hugging_face_encoder(w.below("ctx_encoder/"), c["ctx_encoder"], texts, other_kinds, names[1])[:, 0])


def model_zoo(w, c, questions, kinds, texts, other_kinds):
    assert c["pooler_type"] == "cls" and c["use_biencoder"] and c["softmax_temperature"] == 1
    first = model_zoo_encoder(w, c["q_encoder"], "question_encoder", questions, kinds)
    return outputs(first[:, 0], model_zoo_encoder(w, c["ctx_encoder"], "ctx_encoder", texts, other_kinds)[:, 0])


HF = {**bert.HF, "model_type": "dpr", "projection_dim": 0}
CASES = {
    "two encoders": {"hf": {"q_encoder": HF, "ctx_encoder": {**HF, "hidden_act": "relu"}}},
    "different sizes": {"hf": {"q_encoder": {**HF, "num_hidden_layers": 1, "intermediate_size": 40},
                               "ctx_encoder": {**HF, "vocab_size": 23, "layer_norm_eps": 0.3}}},
}
