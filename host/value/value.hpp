// The tree that all formats use: the Python objects of a checkpoint or a config, with order, identity and
// spelling.
//
// A Value is a cheap handle. Containers are shared by reference, as in Python: copying a Value copies the
// handle, and two handles on one node are "the same object" (tied tensors, a list in two places).
// Not thread-safe for writing; reading from several threads is fine.
#pragma once

#include <complex>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "host/tensor/tensor.hpp"

namespace cbk {

class Value;
class Dict;

/// Whole numbers of any size. `digits` is set if the number does not fit (then it is decimal and `value` is
/// 0), or when a config spelled it in its own way (0x1F, 1_000).
struct Integer {
  int64_t value = 0;
  std::shared_ptr<const std::string> digits;
  bool fits = true;
};

/// `spelling`: the user's spelling in a config, if known.
struct Real {
  double value = 0;
  std::shared_ptr<const std::string> spelling;
  bool from_yaml =
      false;  // a YAML file spelled it, so YAML may have it back even where PyYAML reads text (1e-5)
};

struct ByteString {
  std::string data;
  bool is_mutable = false;  // Python's bytearray
};

/// Changes of a container by a script. Those of an open checkpoint refuse them (`make_read_only`). A copy of
/// a container begins anew.
struct Edits {
  bool are_refused = false;
  uint32_t count = 0;
  Edits() = default;
  Edits(const Edits&) {}
  Edits& operator=(const Edits&) { return *this; }
};

struct Sequence {
  enum class Kind { list, tuple, set, frozenset, deque, torch_size };
  Kind kind = Kind::list;
  std::vector<Value> items;
  std::optional<int64_t> maxlen;  // deque
  std::string type;               // the class of a namedtuple, else ""
  Edits edits = {};
};

/// A tensor as a leaf of the tree. One shared node = one Python object.
struct TensorLeaf {
  enum class Role { tensor, parameter, ndarray, np_scalar };
  Tensor tensor;
  Role role = Role::tensor;
  bool requires_grad = false;
};

/// Everything else, described and never executed.
///   type                       repr                   state
///   "torch.dtype"              "torch.bfloat16"
///   "torch.device"             "cpu", "cuda:0"
///   "builtins.range"           "range(3, 9)"
///   "torch.sparse_coo"                                dict: shape (torch_size), indices, values,
///   is_coalesced (bool or none) "torch.quantized"                                 dict: dtype ("qint8"),
///   int_repr, qscheme ("torch.per_tensor_affine"),
///                                                     scale, zero_point or scales, zero_points (lists),
///                                                     axis; requires_grad
///   "cerebras.graph_tensor"                           dict: jit_graph, dtype, shape (torch_size), args
///   (list) "argparse.Namespace", …                           dict of attributes
struct Object;

class Value {
 public:
  enum class Kind { none, boolean, integer, real, complex, string, bytes, sequence, dict, tensor, object };

  Value() = default;  // none
  Value(const Value&) = default;
  Value(Value&&) noexcept = default;
  Value& operator=(const Value&) = default;
  Value& operator=(Value&&) noexcept = default;
  ~Value() {
    if (may_nest()) let_go();
  }
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(Integer{value, nullptr, true}) {}
  Value(int value) : Value(static_cast<int64_t>(value)) {}
  Value(Integer value) : data_(std::move(value)) {}
  Value(double value) : data_(Real{value, nullptr}) {}
  Value(Real value) : data_(std::move(value)) {}
  Value(std::complex<double> value) : data_(value) {}
  Value(std::string value) : data_(std::move(value)) {}
  Value(std::string_view value) : data_(std::string(value)) {}
  Value(const char* value) : data_(std::string(value)) {}
  Value(std::shared_ptr<ByteString> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<Sequence> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<Dict> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<const TensorLeaf> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<Object> value) : data_(std::move(value)) {}
  Value(Tensor tensor) : data_(std::make_shared<const TensorLeaf>(TensorLeaf{std::move(tensor)})) {}

  static Value list(std::vector<Value> items = {});
  static Value tuple(std::vector<Value> items = {});
  static Value dict();
  static Value bytes(std::string data);
  /// Decimal digits with an optional sign; uses the int64 form if it fits.
  static Value integer(std::string_view decimal);

  [[nodiscard]] Kind kind() const { return static_cast<Kind>(data_.index()); }
  [[nodiscard]] bool is(Kind kind) const { return this->kind() == kind; }
  [[nodiscard]] bool is_none() const { return is(Kind::none); }
  /// Whether a value of this kind holds other values.
  [[nodiscard]] bool may_nest() const { return is(Kind::sequence) || is(Kind::dict) || is(Kind::object); }
  /// "dict", "torch.Size", "int", …, for messages.
  [[nodiscard]] std::string kind_name() const;

  // Typed access; the wrong kind is a `value` error that names both.
  [[nodiscard]] bool as_bool() const;
  [[nodiscard]] int64_t as_int() const;  // must fit
  [[nodiscard]] const Integer& as_integer() const;
  [[nodiscard]] double as_double() const;  // an integer too
  [[nodiscard]] const Real& as_real() const;
  [[nodiscard]] std::complex<double> as_complex() const;
  [[nodiscard]] const std::string& as_string() const;
  [[nodiscard]] const ByteString& as_bytes() const;
  [[nodiscard]] Sequence& as_sequence() const;
  [[nodiscard]] Dict& as_dict() const;
  [[nodiscard]] const TensorLeaf& as_leaf() const;
  [[nodiscard]] const Tensor& as_tensor() const;
  [[nodiscard]] Object& as_object() const;

  /// The shared node itself (T: Sequence, Dict, const TensorLeaf, ByteString, Object); nullptr for another
  /// kind.
  template <typename T>
  [[nodiscard]] std::shared_ptr<T> node() const {
    const auto* node = std::get_if<std::shared_ptr<T>>(&data_);
    return node == nullptr ? nullptr : *node;
  }

  /// Direct look-up in a dict with text keys: the value, or nullptr.
  [[nodiscard]] const Value* find(std::string_view key) const;

  /// The shared node behind containers, tensors, bytes and objects, for identity; nullptr for scalars.
  [[nodiscard]] const void* identity() const;
  /// Whether no other handle on this node exists. False for scalars.
  [[nodiscard]] bool is_unshared() const;
  /// Same scalar, or the same node.
  [[nodiscard]] bool same(const Value& other) const;
  /// Equal by content (tensors: the same data); 1 and 1.0 differ.
  [[nodiscard]] bool equals(const Value& other) const;

 private:
  /// Frees the node, if this is its last handle: a tree of any depth with a bounded stack.
  void let_go() noexcept;

  std::variant<std::monostate, bool, Integer, Real, std::complex<double>, std::string,
               std::shared_ptr<ByteString>, std::shared_ptr<Sequence>, std::shared_ptr<Dict>,
               std::shared_ptr<const TensorLeaf>, std::shared_ptr<Object>>
      data_;
};

struct Object {
  std::string type;
  std::string repr;
  Value state;
  bool is_record = false;  // an instance of a class: its state is a dict of attributes, mostly
  bool is_inert = false;   // a description of what is no data, which is never written
};

/// The container of a value's items: the attributes of a record, if it has some; for others the value itself.
const Value& insides(const Value& value);

/// An ordered map. Keys are text in practice; ints, floats, bools, None and tuples of them also occur.
class Dict {
 public:
  enum class Kind { dict, ordered, counter, defaultdict };
  using Entry = std::pair<Value, Value>;

  Dict() = default;
  explicit Dict(Kind k) : kind(k) {}
  Kind kind = Kind::dict;
  Value attributes;  // what BUILD gave an OrderedDict (a Module's _metadata), or none
  Edits edits = {};

  class Entries;
  /// A range over the entries in their order; it becomes invalid if the dict changes.
  [[nodiscard]] Entries entries() const;
  [[nodiscard]] size_t size() const { return entries_.size() - hole_count_; }
  [[nodiscard]] bool empty() const { return size() == 0; }
  [[nodiscard]] const Value* find(const Value& key) const;
  [[nodiscard]] const Value* find(std::string_view key) const;
  /// The value, or a `key` error that names the key and the nearest ones.
  [[nodiscard]] const Value& at(std::string_view key) const;
  /// Replaces in place, or appends.
  void set(Value key, Value value);
  /// Appends key and value, which are moved from, and returns nullptr. If the key exists, changes nothing and
  /// returns its value.
  Value* append_or_find(Value& key, Value& value);
  /// Constant time on average; other entries keep their order.
  bool erase(const Value& key);
  void reserve(size_t count);

  // For objects that refer to entries by position (`LeafTable`). While a dict is pinned, an entry keeps its
  // position, even if others are set or erased.
  class Pin;
  [[nodiscard]] size_t position_count() const { return entries_.size(); }
  /// nullptr: erased.
  [[nodiscard]] const Entry* entry_at(size_t position) const {
    return position < entries_.size() && !is_hole(position) ? &entries_[position] : nullptr;
  }

 private:
  /// A copy of a dict has no pins.
  struct PinCount {
    uint32_t count = 0;
    PinCount() = default;
    PinCount(const PinCount&) {}
    PinCount& operator=(const PinCount&) { return *this; }
  };

  [[nodiscard]] bool is_hole(size_t position) const { return !holes_.empty() && holes_[position]; }
  /// The entry of this hash for which `matches(key)` holds, or `nowhere`.
  template <typename Matches>
  [[nodiscard]] size_t position_of(size_t hash, Matches&& matches) const;
  [[nodiscard]] size_t position_of(const Value& key) const;
  void index(size_t position);
  void rebuild_index(size_t capacity);
  /// Leaves the index to be rebuilt.
  void close_holes();

  std::vector<Entry> entries_;
  std::vector<bool> holes_;  // entries that were erased; empty: none
  size_t hole_count_ = 0;
  mutable PinCount pins_;
  // Open addressing: position + 1 of an entry, 0 is free; empty for a small dict.
  std::vector<uint32_t> slots_;
};

class Dict::Entries {
 public:
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = Entry;
    using difference_type = std::ptrdiff_t;
    using pointer = const Entry*;
    using reference = const Entry&;

    Iterator() = default;
    Iterator(const Dict* dict, size_t position) : dict_(dict), position_(position) { skip_holes(); }
    reference operator*() const { return dict_->entries_[position_]; }
    pointer operator->() const { return &**this; }
    Iterator& operator++() {
      ++position_;
      skip_holes();
      return *this;
    }
    Iterator operator++(int) {
      Iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const Iterator& other) const { return position_ == other.position_; }

   private:
    void skip_holes() {
      while (position_ < dict_->entries_.size() && dict_->is_hole(position_)) ++position_;
    }
    const Dict* dict_ = nullptr;
    size_t position_ = 0;
  };

  explicit Entries(const Dict& dict) : dict_(&dict) {}
  [[nodiscard]] Iterator begin() const { return {dict_, 0}; }
  [[nodiscard]] Iterator end() const { return {dict_, dict_->entries_.size()}; }
  [[nodiscard]] const Entry& front() const { return *begin(); }

 private:
  const Dict* dict_;
};

/// Pins a dict, and keeps it alive.
class Dict::Pin {
 public:
  explicit Pin(std::shared_ptr<const Dict> dict) : dict_(std::move(dict)) { ++dict_->pins_.count; }
  Pin(Pin&&) noexcept = default;
  Pin& operator=(Pin&&) = delete;
  ~Pin() {
    if (dict_) --dict_->pins_.count;
  }
  const Dict& operator*() const { return *dict_; }

 private:
  std::shared_ptr<const Dict> dict_;
};

inline Dict::Entries Dict::entries() const {
  return Entries(*this);
}

/// The text of a dict key in a dotted path, as Python's str(): "weight", "0", "None", "True".
std::string key_text(const Value& key);

/// Child of a container by one part of a dotted path ("weight", or "0" in a list); nullptr if there is
/// none.
const Value* child(const Value& container, std::string_view part);

/// Value at a path such as "model.layers.0.weight". Keys that contain dots are found too (longest key first).
const Value* find_path(const Value& root, std::string_view path);

}  // namespace cbk
