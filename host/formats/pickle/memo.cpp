#include "host/formats/pickle/memo.hpp"

#include <algorithm>
#include <charconv>

#include "host/formats/pickle/opcodes.hpp"

namespace cbk::pickle {
namespace {

/// Picklers number their memo one by one; a number may exceed the number of entries by this much.
constexpr uint64_t slack = 1024;

}  // namespace

Memo::Memo(std::string_view pickle, Arena& arena) : arena_(arena), limit_(slack) {
  look_through(pickle);
}

uint64_t Memo::parse_index(std::string_view text) {
  uint64_t index = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error != std::errc{} || end != text.data() + text.size())
    fail(Errc::format, "{} is not a memo index", quote(text));
  return index;
}

void Memo::look_through(std::string_view pickle) {
  // A fetched value was put before.
  const auto note = [this](uint64_t index) {
    if (index >= limit_) return;
    if (index >= fetched_.size()) fetched_.resize(index + 1);
    fetched_[index] = true;
  };
  try {
    InstructionReader reader(pickle);
    for (Instruction instruction = reader.next(); instruction.op != Op::stop; instruction = reader.next()) {
      switch (instruction.op) {
        case Op::put:
        case Op::binput:
        case Op::long_binput:
        case Op::memoize:
          ++limit_;
          break;
        case Op::get:
          note(parse_index(instruction.text));
          break;
        case Op::binget:
        case Op::long_binget:
          note(static_cast<uint64_t>(instruction.number));
          break;
        default:
          break;
      }
    }
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): found again, and reported, when the pickle is run
  }
}

bool Memo::put(uint64_t index, const Value& value) {
  if (index >= limit_) fail(Errc::format, "the memo index {} is too large", index);
  size_ = std::max(size_, index + 1);
  if (index >= fetched_.size() || !fetched_[index]) return false;
  if (index >= values_.size()) {
    arena_.charge((index + 1 - values_.size()) * sizeof(Value));
    values_.resize(index + 1);
    is_set_.resize(index + 1);
  }
  if (value.is(Value::Kind::string)) arena_.charge(value.as_string().size());
  values_[index] = value;
  is_set_[index] = true;
  return true;
}

const Value& Memo::get(uint64_t index) {
  if (index >= values_.size() || !is_set_[index]) fail(Errc::format, "the memo has no entry {}", index);
  if (values_[index].is(Value::Kind::string)) arena_.charge(values_[index].as_string().size());
  return values_[index];
}

}  // namespace cbk::pickle
