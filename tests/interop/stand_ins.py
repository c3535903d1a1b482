"""Classes of packages that are not installed, with their names and states, for pickles as these packages write them."""
import sys
import types


def stand_in(module, name, bases=(), **members):
    """A class of a module that is not installed."""
    parts = module.split(".")
    for i in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    made = type(name, bases, {"__module__": module, "__qualname__": name, **members})
    setattr(sys.modules[module], name, made)
    return made


def instance(cls, **state):
    made = cls.__new__(cls)
    made.__dict__.update(state)
    return made
