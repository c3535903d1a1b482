#include "host/formats/torch/globals.hpp"

#include <array>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "host/base/error.hpp"
#include "host/formats/pickle/globals.hpp"
#include "host/formats/torch/disassembler.hpp"

namespace cbk::torch {
namespace {

using pickle::Op;

/// Tracks the texts on top of a pickle's stack, as far as STACK_GLOBAL needs them: picklers push its two
/// names right before it, or fetch them from the memo.
class Names {
 public:
  /// The module and name of the global that the instruction pushes; "?" for an unknown text.
  std::optional<std::pair<std::string, std::string>> step(const pickle::Instruction& instruction) {
    switch (instruction.op) {
      case Op::global:
      case Op::inst:
        push(std::nullopt);
        return std::pair(std::string(instruction.text), std::string(instruction.second));
      case Op::stack_global: {
        const auto names = top_;
        push(std::nullopt);
        if (!names[0] || !names[1]) return std::pair(std::string("?"), std::string("?"));
        return std::pair(*names[0], *names[1]);
      }
      case Op::proto:
      case Op::frame:
        return std::nullopt;
      case Op::put:
        memo_[number_of(instruction.text)] = top_[1];
        return std::nullopt;
      case Op::binput:
      case Op::long_binput:
        memo_[static_cast<uint64_t>(instruction.number)] = top_[1];
        return std::nullopt;
      case Op::memoize: {
        const size_t next = memo_.size();  // before the entry is made
        memo_[next] = top_[1];
        return std::nullopt;
      }
      default:
        push(text_of(instruction));
        return std::nullopt;
    }
  }

 private:
  using Text = std::optional<std::string>;

  void push(Text text) { top_ = {std::move(top_[1]), std::move(text)}; }

  static uint64_t number_of(std::string_view text) {
    uint64_t number = 0;
    for (const char c : text) number = 10 * number + static_cast<uint64_t>(c - '0');
    return number;
  }

  /// The text that an instruction pushes.
  Text text_of(const pickle::Instruction& instruction) {
    switch (instruction.op) {
      case Op::short_binunicode:
      case Op::binunicode:
      case Op::binunicode8:
      case Op::unicode_text:
      case Op::short_binstring:
      case Op::binstring:
        return std::string(instruction.text);
      case Op::get:
        return memo_[number_of(instruction.text)];
      case Op::binget:
      case Op::long_binget:
        return memo_[static_cast<uint64_t>(instruction.number)];
      default:
        return std::nullopt;
    }
  }

  std::array<Text, 2> top_;
  std::unordered_map<uint64_t, Text> memo_;
};

NamedGlobal::Kind kind_of(const std::string& global) {
  if (pickle::find_global(global, false)) return NamedGlobal::Kind::plain;
  return global != "?" && pickle::is_harmless(global) ? NamedGlobal::Kind::record
                                                      : NamedGlobal::Kind::refused;
}

}  // namespace

std::string_view name_of(NamedGlobal::Kind kind) {
  if (kind == NamedGlobal::Kind::plain) return "plain";
  return kind == NamedGlobal::Kind::record ? "record" : "refused";
}

std::vector<NamedGlobal> named_globals(std::shared_ptr<const MappedFile> file) {
  constexpr size_t most = 10'000;
  std::vector<NamedGlobal> out;
  std::unordered_set<std::string, KeyedHash> seen;
  Disassembler pickles(std::move(file));
  Names names;
  try {
    while (const auto opcode = pickles.next()) {
      const auto found = names.step(opcode->instruction);
      if (opcode->instruction.op == Op::stop) names = Names();
      if (!found || out.size() == most) continue;
      const std::string global =
          found->first == "?" ? "?" : pickle::canonical_global(found->first, found->second);
      if (seen.insert(global).second) out.push_back({global, opcode->offset, kind_of(global)});
    }
  } catch (const Error&) {
    // Globals after the damage are not listed.
  }
  return out;
}

}  // namespace cbk::torch
