// The allow-list: every global that a pickle may name, and its meaning here. Nothing outside this file is
// ever "called".
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace cbk::pickle {

enum class Meaning {
  // containers and plain values of Python
  list,
  dict,
  tuple,
  set,
  frozenset,
  ordered_dict,
  counter,
  defaultdict,
  deque,
  bytes,
  bytearray,
  integer,
  real,
  boolean,
  complex,
  range,
  encode,         // _codecs.encode
  reconstructor,  // copyreg._reconstructor
  // constants and plain values of torch
  dtype,
  layout,
  qscheme,
  storage_class,
  size,
  device,
  get_layout,
  // tensors
  rebuild_tensor,  // also _v2: more arguments
  rebuild_tensor_v3,
  rebuild_parameter,
  rebuild_sparse,
  rebuild_sparse_csr,
  rebuild_quantized,
  rebuild_from_numpy,
  rebuild_from_cpu,
  rebuild_meta,
  rebuild_from_type,
  // numpy
  numpy_reconstruct,
  numpy_scalar,
  numpy_dtype,
  numpy_frombuffer,
  // dill
  dill_load_type,
  dill_eval_repr,
  // classes that are kept as records
  record,      // instances become Objects: NEWOBJ, BUILD
  class_only,  // may be named as a value, never called
};

/// Python 2's names of modules, and numpy 2's, as the names used here.
std::string canonical_global(std::string_view module, std::string_view name);

/// The meaning of a canonical global; nothing if it is refused. `dill`: also globals that the tree specs of
/// H5 files name.
std::optional<Meaning> find_global(std::string_view global, bool dill);

/// Whether a file may name the global without being a program: a class or function of an installed package,
/// or a class of Python's library whose instances only hold data. Nothing of it is ever called.
bool is_harmless(std::string_view global);

/// Whether members of this module never count as plain classes, even if records are allowed.
bool is_forbidden_module(std::string_view global);

/// Classes that may be written as they were read: loading them only sets attributes. Other classes could run
/// code of an installed package (torch's data pipes unpickle bytes of their state).
bool is_inert_class(std::string_view global);

/// "dict" or dill's old "DictType" → "builtins.dict"; nothing for a type that is not plain data.
std::optional<std::string> builtin_type(std::string_view dill_name);

}  // namespace cbk::pickle
