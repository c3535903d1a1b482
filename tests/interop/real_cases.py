"""Cases for the real-model check (REALMODELS_CASES): it runs this file inside its own cases.py, whose names are used here."""

# ------------------------------------------------------------------ RoBERTa: padded tokens have a position of their own
def roberta_inputs(model):
    x = enc_inputs(model)
    x["input_ids"][x["attention_mask"] == 0] = model.config.pad_token_id
    return x


roberta_mz = Side(bert_load, lambda m, x, want, state: [keep(first(m(**x)), x)], blind=KB)
for case_name, case_fields in {"1 segment": {}, "2 segments, relu, eps": {"type_vocab_size": 2, "hidden_act": "relu", "layer_norm_eps": 1e-3},
                               "padding is 3, untied": {"pad_token_id": 3, "tie_word_embeddings": False}}.items():
    lm("roberta", "Model Zoo: " + case_name, T.RobertaForMaskedLM, roberta(**case_fields), hf=logits_hf, mz=roberta_mz, inputs=roberta_inputs)
