#include "host/formats/torch/disassembler.hpp"

#include <algorithm>

#include "host/formats/torch/legacy.hpp"

namespace cbk::torch {
namespace {

constexpr uint64_t disassembled_limit = 1ULL << 30;
constexpr int legacy_pickles = 5;  // magic, version, system, the object, the keys of the storages

}  // namespace

Disassembler::Disassembler(std::shared_ptr<const MappedFile> file) : file_(std::move(file)) {
  text_ = as_text(file_->bytes());
  if (!text_.starts_with("PK")) {
    is_legacy_ = legacy_magic_size(text_) > 0;
    most_pickles_ = legacy_pickles;
    return;
  }
  archive_.emplace(file_);
  const auto& entries = archive_->entries();
  const auto entry = std::find_if(entries.begin(), entries.end(),
                                  [](const zip::Entry& each) { return each.name.ends_with("data.pkl"); });
  if (entry == entries.end()) fail(Errc::format, "the archive has no data.pkl");
  member_.emplace(archive_->read(*entry, disassembled_limit));
  text_ = member_->text();
}

std::optional<Opcode> Disassembler::next() {
  if (!reader_) {
    if (most_pickles_ == 0 || !has_pickle()) return std::nullopt;
    --most_pickles_;
    reader_.emplace(text_.substr(begin_));
  }
  const pickle::Instruction instruction = reader_->next();
  Opcode opcode{begin_ + instruction.offset, name_of(instruction.op), pickle::argument_text(instruction),
                instruction};
  if (instruction.op == pickle::Op::stop) {
    begin_ += reader_->position();
    reader_.reset();
  }
  return opcode;
}

bool Disassembler::has_pickle() const {
  constexpr char proto = '\x80';
  return begin_ < text_.size() && (begin_ == 0 || is_legacy_ || text_[begin_] == proto);
}

}  // namespace cbk::torch
