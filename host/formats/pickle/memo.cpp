#include "host/formats/pickle/memo.hpp"

#include <bit>
#include <charconv>

#include "host/formats/pickle/opcodes.hpp"

namespace cbk::pickle {
namespace {

/// Picklers number their memo one by one; a number may exceed the number of entries by this much.
constexpr uint64_t slack = 1024;

}  // namespace

Memo::Memo(std::string_view pickle, Arena& arena) : arena_(arena), limit_(slack) {
  look_through(pickle);
  uint32_t count = 0;
  for (Fetched& word : fetched_) {
    word.before = count;
    count += static_cast<uint32_t>(std::popcount(word.bits));
  }
  arena_.charge(fetched_.size() * sizeof(Fetched) + uint64_t{count} * sizeof(Value));
  values_.resize(count);
  is_set_.resize(count);
}

std::optional<size_t> Memo::place_of(uint64_t index) const {
  if (index / word_bits >= fetched_.size()) return std::nullopt;
  const Fetched& word = fetched_[index / word_bits];
  const uint64_t bit = uint64_t{1} << (index % word_bits);
  if ((word.bits & bit) == 0) return std::nullopt;
  return word.before + static_cast<size_t>(std::popcount(word.bits & (bit - 1)));
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
    if (index / word_bits >= fetched_.size()) fetched_.resize(index / word_bits + 1);
    fetched_[index / word_bits].bits |= uint64_t{1} << (index % word_bits);
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
  const auto place = place_of(index);
  if (!place) return false;
  if (value.is(Value::Kind::string)) arena_.charge(value.as_string().size());
  values_[*place] = value;
  is_set_[*place] = true;
  return true;
}

const Value* Memo::find(uint64_t index) const {
  const auto place = place_of(index);
  return place && is_set_[*place] ? &values_[*place] : nullptr;
}

const Value& Memo::get(uint64_t index) {
  const Value* value = find(index);
  if (value == nullptr) fail(Errc::format, "the memo has no entry {}", index);
  if (value->is(Value::Kind::string)) arena_.charge(value->as_string().size());
  return *value;
}

}  // namespace cbk::pickle
