// The opcodes of a torch file, to inspect a pickle without interpreting it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "host/formats/pickle/opcodes.hpp"
#include "host/formats/zip/archive.hpp"

namespace cbk::torch {

struct Opcode {
  uint64_t offset = 0;  // in the pickle of an archive, else in the file
  std::string_view name;
  std::string argument;
  pickle::Instruction instruction;  // its texts are views into the file
};

/// Returns one opcode after the other: of the pickle in a zip archive, or of the pickles at the beginning of
/// a legacy or plain file.
class Disassembler {
 public:
  /// Errors: `format`.
  explicit Disassembler(std::shared_ptr<const MappedFile> file);
  /// Nothing at the end. Errors: `format`.
  std::optional<Opcode> next();

 private:
  [[nodiscard]] bool has_pickle() const;

  std::shared_ptr<const MappedFile> file_;
  std::optional<zip::Archive> archive_;
  std::optional<zip::Content> member_;  // of the archive
  std::string_view text_;               // the pickles, and what follows them
  bool is_legacy_ = false;
  int most_pickles_ = 1;
  size_t begin_ = 0;                                 // of the pickle
  std::optional<pickle::InstructionReader> reader_;  // of the pickle, between its first opcode and STOP
};

}  // namespace cbk::torch
