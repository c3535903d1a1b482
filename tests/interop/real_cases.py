"""Cases for the real-model check (REALMODELS_CASES): it runs this file inside its own cases.py, whose names are used here."""
import importlib
import os

import yaml


# ------------------------------------------------------------------ RoBERTa: padded tokens have a position of their own
def roberta_inputs(model):
    x = enc_inputs(model)
    x["input_ids"][x["attention_mask"] == 0] = model.config.pad_token_id
    return x


roberta_mz = Side(bert_load, lambda m, x, want, state: [keep(first(m(**x)), x)], blind=KB)
for case_name, case_fields in {"1 segment": {}, "2 segments, relu, eps": {"type_vocab_size": 2, "hidden_act": "relu", "layer_norm_eps": 1e-3},
                               "padding is 3, untied": {"pad_token_id": 3, "tie_word_embeddings": False}}.items():
    lm("roberta", "Model Zoo: " + case_name, T.RobertaForMaskedLM, roberta(**case_fields), hf=logits_hf, mz=roberta_mz, inputs=roberta_inputs)


# ------------------------------------------------------------------ ESM-2
def esm_padded(model):
    x = roberta_inputs(model)
    del x["token_type_ids"]
    x["input_ids"][:, 3] = model.config.mask_token_id
    return x


# The Model Zoo has no contact head; with rotary positions, 4.48 makes unused position embeddings and computes inv_freq.
ESM_OWN = ("contact_head", "position_embeddings", "inv_freq")
for case_name, case_fields in {
    "absolute": {}, "rotary, as published": {"position_embedding_type": "rotary", "token_dropout": True, "emb_layer_norm_before": False},
    "rotary, norm before, untied, eps": {"position_embedding_type": "rotary", "emb_layer_norm_before": True, "tie_word_embeddings": False,
                                         "layer_norm_eps": 1e-3},
}.items():
    lm("esm-2", "Model Zoo: " + case_name, T.EsmForMaskedLM, esm(**case_fields), hf=logits_hf, mz=roberta_mz, inputs=esm_padded)
for case in CASES:
    if case.family == "esm-2":
        case.ignore = lambda k, v: k == "missing_keys" and all(any(own in n for own in ESM_OWN) for n in v)


# ------------------------------------------------------------------ models of two parts: a folder for each
def composite_case(family, name, model, build, call, load, call_zoo, unseen=(), **options):
    """`build()` gives the real models by folder, `call(models)` their outputs; `load(params, state, notes)` and `call_zoo(zoo)` are of
    the Model Zoo. `unseen`: weights that the outputs do not depend on."""
    def custom(run, d, cs, index, differ, blind, read_mdl):
        res, notes, models = {}, [], build()
        for i, (folder, one) in enumerate(models.items()):
            custom_case.k["randomize"](one, index + i)
            one.eval().save_pretrained(f"{d}/hf/{folder}", safe_serialization=i % 2 == 1)
        with torch.no_grad():
            want = call(models)
        run(["convert", "--model", model, "--src-fmt", "hf", "--tgt-fmt", cs, "--config", d + "/hf", d + "/hf", "-o", d + "/cs", "--no-progress-bar"])
        mdl, yml = (next(f"{d}/cs/{n}" for n in os.listdir(d + "/cs") if n.endswith(end)) for end in (".mdl", ".yaml"))

        def back(source, folder, tag):
            run(["convert", "--model", model, "--src-fmt", cs, "--tgt-fmt", "hf", "--config", yml, source, "-o", d + folder, "--no-progress-bar"])
            again = {}
            for part, one in models.items():
                again[part], info = type(one).from_pretrained(f"{d}{folder}/{part}", output_loading_info=True, attn_implementation="eager")
                if type(T.AutoConfig.from_pretrained(f"{d}{folder}/{part}")) is not type(one.config):
                    res[tag + "-auto"] = "AutoConfig finds another class"
                lost = {k: v for k, v in info.items() if v and not all("pooler" in n for n in v)}
                if lost:
                    res[tag + "-keys"] = str(lost)
                again[part].eval()
            with torch.no_grad():
                res[tag] = differ(want, call(again))
        back(mdl, "/back", "hf")
        with open(yml, encoding="utf-8") as f:
            params = yaml.safe_load(f)["model"]
        zoo = load(params, read_mdl(mdl), notes)
        with torch.no_grad():
            res["mz"] = differ(want, call_zoo(zoo))
        left = [n for n in blind(None, zoo, None, call_zoo) if not any(part in n for part in (*KB, *unseen))]
        if left:
            res["blind"] = f"the test does not see {len(left)} weights: {left[:4]}"
        torch.save({"model": {"model." + k: v for k, v in zoo.state_dict().items()}}, d + "/mz.mdl")
        back(d + "/mz.mdl", "/mzback", "mz-hf")
        return "bin", res, notes
    custom_case = Case(family, name, model, None, inputs=None, hf=None, custom=custom, **options)
    custom_case.k = {}
    CASES.append(custom_case)


# ------------------------------------------------------------------ DPR and DRAGON+: scores of questions and texts
dpr_inputs = [enc_inputs(T.BertModel(bert(num_hidden_layers=0, vocab_size=V))) for _ in range(2)]
dpr_inputs[1] = {**dpr_inputs[1], "input_ids": ids(None, seed=8)}


def dpr_load(params, state, notes):
    zoo = inner(mz_model(params, notes))
    for name in ("question_encoder", "ctx_encoder"):  # its own load_state_dict needs a newer torch
        strict(getattr(zoo, name), {k[len(name) + 1:]: v for k, v in state.items() if k.startswith(name + ".")})
    return zoo


def dpr_zoo(zoo):
    named = {}
    for prefix, x in zip(("questions_", "ctx_"), dpr_inputs):
        named.update({prefix + field: x[field][:, None] if prefix == "ctx_" else x[field] for field in x})
    scores, _, questions, texts = zoo(**named)
    return [questions, texts, scores]


def scored(questions, texts):
    return [questions, texts, questions @ texts.T]


def dragon_build():
    return {name: T.BertModel._from_config(bert(hidden_act=act), attn_implementation="eager") for name, act in (("q_encoder", "gelu"), ("ctx_encoder", "relu"))}


def dpr_build():
    config = T.DPRConfig(**{k: v for k, v in bert().to_dict().items() if k not in ("model_type", "architectures")})
    return {"q_encoder": T.DPRQuestionEncoder(config), "ctx_encoder": T.DPRContextEncoder(config)}


DPR = dict(load=dpr_load, call_zoo=dpr_zoo)
composite_case("dragon", "two BertModels", "dragon", dragon_build, call=lambda m: scored(
    *(one(**x).last_hidden_state[:, 0] for one, x in zip(m.values(), dpr_inputs))), **DPR)
composite_case("dpr", "two encoders", "dpr", dpr_build, call=lambda m: scored(
    *(one(**x).pooler_output for one, x in zip(m.values(), dpr_inputs))), **DPR)


# ------------------------------------------------------------------ ViT and DINOv2
def vit(**k):
    return T.ViTConfig(**{**dict(hidden_size=H, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4,
                                 encoder_stride=4, num_labels=5), **k})


def dinov2(**k):
    return T.Dinov2Config(**{**dict(hidden_size=H, mlp_ratio=2, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4,
                                    num_labels=5), **k})


def vit_load(params, state, notes):
    return strict(inner(mz_model(params, notes)), state)


def image_features(m, x, want, state):
    return [first(m.vit_model(input_image=x["pixel_values"]))]


vit_mz = Side(vit_load, lambda m, x, want, state: [first(m(input_image=x["pixel_values"]))], save="model.", blind=KB)
masked_mz = Side(vit_load, vit_mz.call, save="model.", blind=(*KB, "mask_token"))
Vi = dict(inputs=im_inputs, hf=lambda m, x: [m(**x).logits], mz=vit_mz)
lm("vit", "plain", T.ViTForImageClassification, vit(), **Vi)
lm("vit", "relu, eps", T.ViTForImageClassification, vit(hidden_act="relu", layer_norm_eps=1e-3), **Vi)
lm("vit", "no biases", T.ViTForImageClassification, vit(qkv_bias=False), refuse="the reference asks for them", **Vi)
Hl = dict(inputs=im_inputs, hf=lambda m, x: [m(**x).last_hidden_state], mz=Side(vit_load, image_features, save=None, blind=(*KB, "classifier", "mask_token")))
lm("vit", "headless", T.ViTModel, vit(), model="vit-headless", **Hl, ignore=lambda k, v: all("pooler" in n for n in v))
lm("dinov2", "plain", T.Dinov2ForImageClassification, dinov2(), **{**Vi, "mz": masked_mz})
lm("dinov2", "swiglu, eps, scale", T.Dinov2ForImageClassification, dinov2(use_swiglu_ffn=True, mlp_ratio=4, layer_norm_eps=1e-3, layerscale_value=0.1), **{**Vi, "mz": masked_mz})
lm("dinov2", "relu", T.Dinov2ForImageClassification, dinov2(hidden_act="relu", mlp_ratio=1.6), **{**Vi, "mz": masked_mz})
lm("dinov2", "headless", T.Dinov2Model, dinov2(), model="dinov2-headless", **Hl)


# ------------------------------------------------------------------ LLaVA as a MultimodalSimple
def as_simple(zoo):
    """The Model Zoo's model, called as its LLaVA is: the image's patches are behind the first token."""
    def forward(image_data, text_input_ids, attention_mask):
        images = image_data[:, None]
        count = zoo.image_model.compute_image_features(image_data=images).shape[2]
        places = torch.arange(1, count + 1)[None, None].expand(len(images), 1, count)
        return type(zoo).forward(zoo, image_data=images, text_input_ids=text_input_ids, attention_mask=attention_mask, image_data_loc=places)
    zoo.forward = forward
    return zoo


def simple_case(llava):
    def custom(run, d, cs, index, differ, blind, read_mdl):
        def run_other(args):
            return run(["mmsimple-llava" if a == "llava" else a for a in args])
        names, real = llava.custom.__globals__, mz_model
        llava.k.update(custom_case.k)

        def made(params, notes):
            image = params["image_model_list"]["image_models"][0]["image_encoder"]
            notes.append("Model Zoo's config class has no num_classes, use_bias_in_output")
            del image["num_classes"], image["use_bias_in_output"]
            return as_simple(inner(real(params, notes)))
        names["mz_model"] = made
        try:
            return llava.custom(run_other, d, cs, index, differ, lambda *a: [n for n in blind(*a) if "transformer_encoder.norm" not in n], read_mdl)
        finally:
            names["mz_model"] = real
    custom_case = Case("mmsimple-llava", llava.name, "mmsimple-llava", None, inputs=None, hf=None, custom=custom)
    custom_case.k = {}
    CASES.append(custom_case)


for case in [one for one in CASES if one.family == "llava"]:
    simple_case(case)


# ------------------------------------------------------------------ CodeGen, StarCoder
lm("codegen", "rotary 4 of 8", T.CodeGenForCausalLM, codegen())
lm("codegen", "8 heads, n_inner, relu, eps", T.CodeGenForCausalLM, codegen(n_head=8, rotary_dim=2, n_inner=40, activation_function="relu", layer_norm_epsilon=1e-3))
lm("codegen", "headless", T.CodeGenModel, codegen(), model="codegen-headless", hf=headless_hf, mz=mz_headless)

next(case for case in CASES if case.family == "starcoder").mz = mz_plain  # nothing rotates
lm("starcoder", "a key head for each, relu, n_inner, eps", T.GPTBigCodeForCausalLM, bigcode(multi_query=False, activation_function="relu", n_inner=40, layer_norm_epsilon=1e-3), mz=mz_plain)
lm("starcoder", "unscaled, untied", T.GPTBigCodeForCausalLM, bigcode(scale_attn_weights=False, tie_word_embeddings=False), mz=mz_plain)
lm("starcoder", "headless", T.GPTBigCodeModel, bigcode(), model="starcoder-headless", hf=headless_hf, mz=mz_headless)


# ------------------------------------------------------------------ LLaMA, Mixtral
next(case for case in CASES if (case.family, case.name) == ("llama", "head_dim")).refuse = None  # it is attention_inner_dim

# A token's product with an expert's matrix, or nothing where the router chose others.
importlib.import_module("cerebras.pytorch.nn.functional").sparse_act_matmul = lambda x, mask, weight, capacity: (x @ weight.T) * mask[..., None]
lm("mixtral", "3 experts, 1 of them, tied, eps", T.MixtralForCausalLM,
   mixtral(num_local_experts=3, num_experts_per_tok=1, tie_word_embeddings=True, rms_norm_eps=1e-3))
