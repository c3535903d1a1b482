"""What runs_interop.py trains: the files of a task, its loss in PyTorch, and what an evaluation measures.

A batch is a dict of tensors, by the names of the Model Zoo. `inputs` are those that a definition of models/ takes, in its order.
"""
import json
import os

import h5py
import numpy as np
import torch
import torch.nn.functional as F

SAMPLES, LENGTH, WORDS = 24, 7, 19


def numbers(random, *shape, below=WORDS):
    return torch.randint(below, shape, generator=random)


def padded(random, length, least):
    """A mask for texts of several lengths."""
    return (torch.arange(length)[None] < torch.randint(least, length + 1, (SAMPLES, 1), generator=random)).long()


def write(folder, groups, params=None):
    """The datasets of a file, each a stack of some parts."""
    os.makedirs(folder, exist_ok=True)
    with h5py.File(os.path.join(folder, "data.h5"), "w") as file:
        for name, parts in groups.items():
            data = np.stack([part.numpy().astype(np.int32) for part in parts], 1) if isinstance(parts, list) else parts.numpy().astype(np.int32)
            file.create_dataset(name, data=data, chunks=(5, *data.shape[1:]), compression="gzip")
    if params:
        with open(os.path.join(folder, "data_params.json"), "w", encoding="utf-8") as file:
            json.dump(params, file)


def entropy(logits, labels, mask):
    """The sum over what counts."""
    each = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), reduction="none")
    return (each * mask.reshape(-1)).sum()


def measured(logits, labels, mask):
    """Sums of the loss and of what is right, and what counts."""
    return entropy(logits, labels, mask), ((logits.argmax(-1) == labels) * mask).sum(), mask.sum()


class Text:
    """Decoders: each token from those before."""

    FIELDS, RATES, INPUTS = {}, ("dropout_rate", "attention_dropout_rate", "embedding_dropout_rate"), ("input_ids",)
    PROCESSOR = "GptHDF5MapDataProcessor"

    @staticmethod
    def write(folder, seed=1):
        ids = numbers(torch.Generator().manual_seed(seed), SAMPLES, LENGTH + 1)
        mask = torch.ones(SAMPLES, LENGTH, dtype=torch.long)
        mask[::3, -2:] = 0
        batch = {"input_ids": ids[:, :-1], "attention_mask": mask, "labels": ids[:, 1:]}
        write(folder, {"data": list(batch.values())})
        return batch

    @staticmethod
    def loss(outputs, config, batch):
        return entropy(outputs[0], batch["labels"], batch["attention_mask"]) / batch["attention_mask"].sum()

    @staticmethod
    def measures(outputs, batch):
        return measured(outputs[0], batch["labels"], batch["attention_mask"])

    @staticmethod
    def rates(config):
        wide, filters = wider(config, "hidden_size"), wider(config, "filter_size")
        return {r"decoder.*(attn.*dense|ffn\.ffn\.0).*weight": 1 / wide, r"decoder.*ffn\.ffn\.1.*weight": 1 / filters}


def wider(config, size):
    return config[size] / config.get("mup_base_" + size, config[size])


class Pretraining:
    """BERT: masked words, and whether a sentence follows another."""

    FIELDS, RATES = {"mlm_loss_weight": 0.3}, ("dropout_rate", "attention_dropout_rate")
    INPUTS = ("input_ids", "token_type_ids", "attention_mask")
    PROCESSOR = "HDF5IterableDataProcessor"
    CHOSEN = 3

    @classmethod
    def write(cls, folder, seed=1):
        random = torch.Generator().manual_seed(seed)
        batch = {"input_ids": numbers(random, SAMPLES, LENGTH), "attention_mask": padded(random, LENGTH, 4),
                 "token_type_ids": numbers(random, SAMPLES, LENGTH, below=2), "labels": numbers(random, SAMPLES, cls.CHOSEN),
                 "masked_lm_positions": numbers(random, SAMPLES, cls.CHOSEN, below=LENGTH),
                 "masked_lm_mask": padded(random, cls.CHOSEN, 1), "next_sentence_label": numbers(random, SAMPLES, below=2)}
        names = list(batch)
        groups = {"data_0": names[:3], "data_1": names[3:6], "data_2": names[6:]}
        write(folder, {name: [batch[part] for part in parts] for name, parts in groups.items()},
              {name + "_features": parts for name, parts in groups.items()})
        return batch

    @staticmethod
    def chosen(words, batch):
        return words.gather(1, batch["masked_lm_positions"][..., None].expand(-1, -1, words.shape[-1]))

    @classmethod
    def loss(cls, outputs, config, batch):
        words = entropy(cls.chosen(outputs[0], batch), batch["labels"], batch["masked_lm_mask"]) / len(batch["labels"])
        return words * config["mlm_loss_weight"] + F.cross_entropy(outputs[1], batch["next_sentence_label"])

    @classmethod
    def measures(cls, outputs, batch):
        return measured(cls.chosen(outputs[0], batch), batch["labels"], batch["masked_lm_mask"])

    @staticmethod
    def rates(config):
        wide, filters = wider(config, "hidden_size"), wider(config, "filter_size")
        return {r"transformer_encoder.*(attn.*dense|ffn\.ffn\.0).*weight|pooler.*weight": 1 / wide,
                r"transformer_encoder.*ffn\.ffn\.1.*weight": 1 / filters}


class Classification(Pretraining):
    """BERT: the class of a text."""

    FIELDS = {"task_dropout": 0.0}

    @staticmethod
    def write(folder, seed=1):
        random = torch.Generator().manual_seed(seed)
        batch = {"input_ids": numbers(random, SAMPLES, LENGTH), "attention_mask": padded(random, LENGTH, 4),
                 "token_type_ids": numbers(random, SAMPLES, LENGTH, below=2), "labels": numbers(random, SAMPLES, below=3)}
        write(folder, batch)
        return batch

    @staticmethod
    def loss(outputs, config, batch):
        return F.cross_entropy(outputs[0], batch["labels"])

    @staticmethod
    def measures(outputs, batch):
        return measured(outputs[0], batch["labels"], torch.ones(len(batch["labels"])))


class Generation:
    """T5: a text from another one."""

    FIELDS, RATES = {"lm_loss_weight": 0.2}, ("dropout_rate",)
    INPUTS = ("input_ids", "decoder_input_ids", "attention_mask")
    PROCESSOR = "T5HDF5DataProcessor"
    TARGETS = 5

    @classmethod
    def write(cls, folder, seed=1):
        random = torch.Generator().manual_seed(seed)
        ids = numbers(random, SAMPLES, cls.TARGETS + 1)
        batch = {"input_ids": numbers(random, SAMPLES, LENGTH), "attention_mask": padded(random, LENGTH, 3),
                 "decoder_input_ids": ids[:, :-1], "labels": ids[:, 1:], "decoder_attention_mask": padded(random, cls.TARGETS, 2)}
        names = list(batch)
        groups = {"data_0": names[:2], "data_1": names[2:]}
        write(folder, {name: [batch[part] for part in parts] for name, parts in groups.items()},
              {name + "_features": parts for name, parts in groups.items()})
        return batch

    @staticmethod
    def loss(outputs, config, batch):
        return entropy(outputs[0], batch["labels"], batch["decoder_attention_mask"]) / len(batch["labels"]) * config["lm_loss_weight"]

    @staticmethod
    def measures(outputs, batch):
        return measured(outputs[0], batch["labels"], batch["decoder_attention_mask"])

    @staticmethod
    def rates(config):
        wide = wider(config, "d_model")
        heads = 1 / wide if config.get("mup_base_d_kv") else wide ** -0.5
        outputs = 1 / wider(config, "d_kv") if config.get("mup_base_d_kv") else wide ** -0.5
        return {r"embedding.*weight|lm_head.*weight": wide ** -0.5, r"coder.*attn\.proj_[qkv].*dense.*weight": heads,
                r"coder.*attn\.proj_output.*dense.*weight": outputs, r"coder.*ffn\.ffn\.0.*weight": 1 / wide,
                r"coder.*ffn\.ffn\.1.*weight": 1 / wider(config, "d_ff")}


OF_MODEL = {"bert": Pretraining, "bert-sequence-classifier": Classification, "t5": Generation}


def of_model(name):
    return OF_MODEL.get(name, Text)
