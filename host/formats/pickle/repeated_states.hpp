// States of instances of a class that had one of the same form before. A pickle may have 100,000 of them,
// such as the descriptions of pieces in a folder of torch.distributed.checkpoint.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "host/base/hash.hpp"
#include "host/formats/pickle/arena.hpp"
#include "host/formats/pickle/memo.hpp"
#include "host/formats/pickle/opcodes.hpp"

namespace cbk::pickle {

/// One dict for each class is filled again and again, so that no values are made for the opcodes.
class RepeatedStates {
 public:
  /// Both outlive this.
  RepeatedStates(Memo& memo, Arena& arena) : memo_(memo), arena_(arena) {}

  /// Remembers the names of the attributes. Only few and short ones are kept, so that they take no memory
  /// that would have to be charged.
  void note(const std::string& type, const Value& state);

  /// The state of an instance of `type`, where `reader` is at its NEWOBJ: a dict of the noted names, with
  /// whole numbers, texts, sizes and None. It changes at the next call. Then the reader is after its BUILD.
  /// nullptr: it has another form, or something in it is fetched again; nothing has changed.
  const Value* next(const std::string& type, InstructionReader& reader);

 private:
  struct Form {
    Value state;
    std::vector<std::string> names;
    std::vector<Value*> values;  // in `state`
  };

  Memo& memo_;
  Arena& arena_;
  std::unordered_map<std::string, Form, KeyedHash> forms_;
};

}  // namespace cbk::pickle
