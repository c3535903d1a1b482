// The opcodes of one pickle being written: plain values, globals, calls and the memo. No recursion, no
// containers.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "host/formats/pickle/opcodes.hpp"
#include "host/value/row_index.hpp"
#include "host/value/value.hpp"

namespace cbk::pickle {

class Stream {
 public:
  /// `dill`: builtin classes in dill's form. `is_rehearsal`: only the memo of nodes is kept.
  Stream(int protocol, bool dill, bool is_rehearsal);

  /// The pickle with its head and STOP.
  std::string finish();
  [[nodiscard]] int protocol() const { return protocol_; }
  [[nodiscard]] bool is_dill() const { return dill_; }

  void op(Op code) {
    if (is_rehearsal_) out_.clear();
    out_.push_back(static_cast<char>(code));
  }
  void mark() { op(Op::mark); }
  /// The tuple of the last `count` values, up to three.
  void tuple_end(size_t count);
  /// Calls the global below the last `argument_count` values, up to three.
  void call(size_t argument_count) {
    tuple_end(argument_count);
    op(Op::reduce);
  }

  // --- values
  void integer(const Integer& value);
  void integer(int64_t value) { integer(Integer{value, nullptr, true}); }
  void real(double value);
  void boolean(bool value) { op(value ? Op::newtrue : Op::newfalse); }
  void text(const std::string& value);
  void bytes(std::string_view value);
  void byte_string(const ByteString& value);
  void tuple_of_numbers(const std::vector<int64_t>& numbers);
  /// A dtype by its code, "<f4", ">i8", "|S5", "U3". Errors: `unsupported` for those with further data
  /// (dates, records).
  void numpy_dtype(std::string_view code);
  /// An array or a scalar of numpy, with its elements.
  void numpy(const TensorLeaf& leaf);

  // --- globals, by their dotted names
  void global(std::string_view dotted);
  /// A class: dill has a special form for Python's own classes.
  void type(std::string_view dotted);

  // --- the memo of nodes
  /// Records that the last value is this node's.
  void remember(const void* node) { memoize(nodes_[node]); }
  [[nodiscard]] bool knows(const void* node) const { return nodes_.contains(node); }
  /// Fetches the node's value, if it was recorded.
  bool fetch_known(const void* node);

 private:
  /// A text in the memo, and its place in the pickle.
  struct Text {
    uint64_t begin = 0;
    uint32_t size = 0;
    uint32_t slot = 0;
  };

  void memoize(uint64_t& slot);
  void fetch(uint64_t slot);

  int protocol_;
  bool dill_;
  bool is_rehearsal_;
  std::string out_;
  uint64_t memo_count_ = 0;
  std::unordered_map<const void*, uint64_t> nodes_;
  std::deque<Text> texts_;
  RowIndex text_index_;
  std::unordered_map<std::string, uint64_t> globals_;
};

}  // namespace cbk::pickle
