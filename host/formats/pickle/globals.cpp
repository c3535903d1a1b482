#include "host/formats/pickle/globals.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <unordered_map>
#include <unordered_set>

#include "host/formats/pickle/storage_class.hpp"

namespace cbk::pickle {
namespace {

using Table = std::unordered_map<std::string_view, Meaning>;

const Table& general() {
  static const Table table = {
      {"builtins.list", Meaning::list},
      {"builtins.dict", Meaning::dict},
      {"builtins.tuple", Meaning::tuple},
      {"builtins.set", Meaning::set},
      {"builtins.frozenset", Meaning::frozenset},
      {"builtins.bytes", Meaning::bytes},
      {"builtins.bytearray", Meaning::bytearray},
      {"builtins.int", Meaning::integer},
      {"builtins.float", Meaning::real},
      {"builtins.bool", Meaning::boolean},
      {"builtins.complex", Meaning::complex},
      {"builtins.range", Meaning::range},
      {"builtins.str", Meaning::class_only},
      {"builtins.object", Meaning::class_only},
      {"builtins.NoneType", Meaning::class_only},
      {"collections.OrderedDict", Meaning::ordered_dict},
      {"collections.Counter", Meaning::counter},
      {"collections.defaultdict", Meaning::defaultdict},
      {"collections.deque", Meaning::deque},
      {"_codecs.encode", Meaning::encode},
      {"copyreg._reconstructor", Meaning::reconstructor},
      {"torch.Size", Meaning::size},
      {"torch.device", Meaning::device},
      {"torch.Tensor", Meaning::class_only},
      {"torch._tensor.Tensor", Meaning::class_only},
      {"torch.nn.parameter.Parameter", Meaning::rebuild_parameter},
      {"torch.serialization._get_layout", Meaning::get_layout},
      {"torch._utils._rebuild_tensor", Meaning::rebuild_tensor},
      {"torch._utils._rebuild_tensor_v2", Meaning::rebuild_tensor},
      {"torch._utils._rebuild_tensor_v3", Meaning::rebuild_tensor_v3},
      {"torch._utils._rebuild_parameter", Meaning::rebuild_parameter},
      {"torch._utils._rebuild_parameter_with_state", Meaning::rebuild_parameter},
      {"torch._utils._rebuild_sparse_tensor", Meaning::rebuild_sparse},
      {"torch._utils._rebuild_sparse_csr_tensor", Meaning::rebuild_sparse_csr},
      {"torch._utils._rebuild_qtensor", Meaning::rebuild_quantized},
      {"torch._utils._rebuild_device_tensor_from_numpy", Meaning::rebuild_from_numpy},
      {"torch._utils._rebuild_device_tensor_from_cpu_tensor", Meaning::rebuild_from_cpu},
      {"torch._utils._rebuild_meta_tensor_no_storage", Meaning::rebuild_meta},
      {"torch._tensor._rebuild_from_type_v2", Meaning::rebuild_from_type},
      {"torch.strided", Meaning::layout},
      {"torch.sparse_coo", Meaning::layout},
      {"torch.sparse_csr", Meaning::layout},
      {"torch.sparse_csc", Meaning::layout},
      {"torch.sparse_bsr", Meaning::layout},
      {"torch.sparse_bsc", Meaning::layout},
      {"torch.per_tensor_affine", Meaning::qscheme},
      {"torch.per_tensor_symmetric", Meaning::qscheme},
      {"torch.per_channel_affine", Meaning::qscheme},
      {"torch.per_channel_symmetric", Meaning::qscheme},
      {"torch.per_channel_affine_float_qparams", Meaning::qscheme},
      {"torch.storage.TypedStorage", Meaning::class_only},
      {"torch.storage._TypedStorage", Meaning::class_only},
      {"numpy.core.multiarray._reconstruct", Meaning::numpy_reconstruct},
      {"numpy.core.multiarray.scalar", Meaning::numpy_scalar},
      {"numpy.core.numeric._frombuffer", Meaning::numpy_frombuffer},
      {"numpy.dtype", Meaning::numpy_dtype},
      {"numpy.ndarray", Meaning::class_only},
      {"dill._dill._load_type", Meaning::dill_load_type},
  };
  return table;
}

/// Globals that occur only in pickles inside Cerebras H5 files.
const Table& dill_only() {
  static const Table table = {
      {"dill._dill._eval_repr", Meaning::dill_eval_repr},
      {"torch.utils._pytree.TreeSpec", Meaning::record},
      {"torch.utils._pytree.LeafSpec", Meaning::record},
      {"collections.namedtuple", Meaning::class_only},
  };
  return table;
}

/// Modules of Python's library (`sys.stdlib_module_names` of 3.11) except those with classes that only hold
/// data:
/// argparse, collections, datetime, decimal, fractions, uuid. An instance of any other may act when it is
/// created or destroyed: fileinput.FileInput removes a file that its state names.
const std::unordered_set<std::string_view>& standard_modules() {
  static constexpr std::string_view names =
      "abc aifc antigravity array ast asynchat asyncio asyncore atexit audioop base64 bdb binascii "
      "bisect builtins bz2 cProfile calendar cgi cgitb chunk cmath cmd code codecs codeop colorsys "
      "compileall concurrent configparser contextlib contextvars copy copyreg crypt csv ctypes "
      "curses dataclasses dbm difflib dis distutils doctest email encodings ensurepip enum errno "
      "faulthandler fcntl filecmp fileinput fnmatch ftplib functools gc genericpath getopt getpass "
      "gettext glob graphlib grp gzip hashlib heapq hmac html http idlelib imaplib imghdr imp "
      "importlib inspect io ipaddress itertools json keyword lib2to3 linecache locale logging lzma "
      "mailbox mailcap marshal math mimetypes mmap modulefinder msilib msvcrt multiprocessing "
      "netrc nis nntplib nt ntpath nturl2path numbers opcode operator optparse os ossaudiodev "
      "pathlib pdb pickle pickletools pipes pkgutil platform plistlib poplib posix posixpath "
      "pprint profile pstats pty pwd py_compile pyclbr pydoc pydoc_data pyexpat queue quopri "
      "random re readline reprlib resource rlcompleter runpy sched secrets select selectors shelve "
      "shlex shutil signal site smtpd smtplib sndhdr socket socketserver spwd sqlite3 sre_compile "
      "sre_constants sre_parse ssl stat statistics string stringprep struct subprocess sunau "
      "symtable sys sysconfig syslog tabnanny tarfile telnetlib tempfile termios textwrap this "
      "threading time timeit tkinter token tokenize tomllib trace traceback tracemalloc tty turtle "
      "turtledemo types typing unicodedata unittest urllib uu venv warnings wave weakref "
      "webbrowser winreg winsound wsgiref xdrlib xml xmlrpc zipapp zipfile zipimport zlib zoneinfo ";
  static const auto table = [] {
    std::unordered_set<std::string_view> modules;
    for (size_t begin = 0; begin < names.size();) {
      const size_t end = std::min(names.find(' ', begin), names.size());
      modules.insert(names.substr(begin, end - begin));
      begin = end + 1;
    }
    return modules;
  }();
  return table;
}

/// Creating an instance of one of their classes may already have effects: numpy.memmap writes a file.
const std::unordered_set<std::string_view> acting_packages = {"numpy",       "dill",   "setuptools",   "pip",
                                                              "cloudpickle", "joblib", "pkg_resources"};
constexpr auto acting_torch_modules =
    std::to_array<std::string_view>({"torch.load", "torch.hub", "torch.jit", "torch.package",
                                     "torch.serialization", "torch.multiprocessing", "torch.distributed"});

/// Modules of `is_forbidden_module` with classes that only hold data. Their functions may do anything:
/// typing.get_type_hints evaluates texts.
constexpr auto data_modules =
    std::to_array<std::string_view>({"abc", "builtins", "dataclasses", "enum", "ipaddress", "numbers",
                                     "pathlib", "string", "torch.distributed", "typing", "zoneinfo"});

/// Single names that are data: values of Python, buffers in memory, states of random number generators.
const std::unordered_set<std::string_view> data_globals = {
    "builtins.slice",
    "builtins.type",
    "functools.partial",
    "types.SimpleNamespace",
    "types.MappingProxyType",
    "types.GenericAlias",
    "types.UnionType",
    "operator.itemgetter",
    "_operator.or_",  // flags of an enum
    "builtins.abs",
    "builtins.all",
    "builtins.any",
    "builtins.len",
    "builtins.max",
    "builtins.min",
    "builtins.round",
    "builtins.sorted",
    "builtins.sum",
    "_io.BytesIO",
    "_io.StringIO",
    "io.BytesIO",
    "io.StringIO",
    "array.array",
    "array._array_reconstructor",
    "random.Random",
    "re._compile",
    "numpy.ma.core._mareconstruct",
    "numpy.random._pickle.__randomstate_ctor",
    "numpy.random._pickle.__generator_ctor",
    "numpy.random._pickle.__bit_generator_ctor",
};

/// "part.Class" or "part._Class": the last part alone begins with a capital letter.
bool is_class_below(std::string_view name) {
  const size_t dot = name.rfind('.');
  const std::string_view before = dot == std::string_view::npos ? "" : name.substr(0, dot);
  if (std::ranges::any_of(before, [](unsigned char c) { return std::isupper(c) != 0; })) return false;
  std::string_view last = dot == std::string_view::npos ? name : name.substr(dot + 1);
  while (last.starts_with('_')) last.remove_prefix(1);
  return !last.empty() && std::isupper(static_cast<unsigned char>(last.front())) != 0;
}

bool is_torch_dtype(std::string_view name) {
  constexpr std::array<std::string_view, 6> without_storage = {"qint8",    "quint8",   "qint32",
                                                               "quint4x2", "quint2x4", "complex32"};
  for (std::string_view known : without_storage) {
    if (name == known) return true;
  }
  const auto dtype = find_dtype(name);
  return dtype && name_of(*dtype) == name;
}

/// Python 2's name of a builtin, which protocols 0 to 2 have, as Python 3's.
std::string_view new_name(std::string_view name) {
  if (name == "xrange") return "range";
  if (name == "long") return "int";
  return name == "unicode" ? "str" : name;
}

}  // namespace

std::string canonical_global(std::string_view module, std::string_view name) {
  if (module == "__builtin__") return "builtins." + std::string(new_name(name));
  if (module == "copy_reg") return "copyreg." + std::string(name);
  if (module.starts_with("numpy._core")) {
    return "numpy.core" + std::string(module.substr(sizeof "numpy._core" - 1)) + "." + std::string(name);
  }
  return std::string(module) + "." + std::string(name);
}

std::optional<Meaning> find_global(std::string_view global, bool dill) {
  if (auto found = general().find(global); found != general().end()) return found->second;
  if (find_storage_class(global) != nullptr) return Meaning::storage_class;
  if (global.starts_with("torch.") && is_torch_dtype(global.substr(6))) return Meaning::dtype;
  if (!dill) return std::nullopt;
  if (auto found = dill_only().find(global); found != dill_only().end()) return found->second;
  if (global.starts_with("cerebras") && global.ends_with(".TensorScalarDict")) return Meaning::class_only;
  return std::nullopt;
}

bool is_forbidden_module(std::string_view global) {
  // Python's C modules: _io, _ctypes, _posixsubprocess.
  if (global.starts_with('_') && !global.starts_with("__main__.")) return true;
  const std::string_view top = global.substr(0, global.find('.'));
  if (top != "torch") return standard_modules().contains(top) || acting_packages.contains(top);
  return std::ranges::any_of(acting_torch_modules, [&](std::string_view module) {
    return global.starts_with(module) && (global.size() == module.size() || global[module.size()] == '.');
  });
}

bool is_harmless(std::string_view global) {
  if (!is_forbidden_module(global) || data_globals.contains(global) || global.starts_with("math."))
    return true;
  return std::ranges::any_of(data_modules, [&](std::string_view module) {
    return global.starts_with(module) && global.size() > module.size() && global[module.size()] == '.' &&
           is_class_below(global.substr(module.size() + 1));
  });
}

bool is_inert_class(std::string_view global) {
  if (global == "argparse.Namespace" || find_global(global, true)) return true;
  constexpr std::string_view own = "__main__.";  // a class of the program that loads the file
  return global.starts_with(own) && global.find('.', own.size()) == std::string_view::npos;
}

std::optional<std::string> builtin_type(std::string_view dill_name) {
  static const std::unordered_map<std::string_view, std::string_view> old_names = {
      {"DictType", "dict"}, {"ListType", "list"}, {"TupleType", "tuple"}};
  if (auto found = old_names.find(dill_name); found != old_names.end()) dill_name = found->second;
  const std::string global = "builtins." + std::string(dill_name);
  return find_global(global, false) ? std::optional(global) : std::nullopt;
}

}  // namespace cbk::pickle
