#include "host/base/transaction.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "host/base/interrupt.hpp"
#include "host/base/renames.hpp"
#include "host/base/replaced.hpp"
#include "host/base/stale.hpp"
#include "host/base/team.hpp"

namespace cbk {
namespace {

/// "out/" names the same folder as "out".
fs::path without_slash(const fs::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

std::string message_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

bool Transaction::Member::replaces() const {
  std::error_code ignored;
  return overwrite && fs::exists(fs::symlink_status(staged->target(), ignored));
}

void Transaction::add(Member added) {
  for (const Member& member : members_) {
    if (member.staged->target() == added.staged->target())
      fail(Errc::usage, "two outputs would be '{}'; choose another name", added.staged->target().string());
  }
  members_.push_back(std::move(added));
}

fs::path Transaction::name_for(const fs::path& target) const {
  if (sharing_.role.kind == Role::Kind::alone) return temporary_sibling(target);
  return sharing_.role.is_kept ? kept_sibling(target, sharing_.tag) : temporary_sibling(target, sharing_.tag);
}

/// Removes what a killed process has laid out in part.
void Transaction::make_room(const fs::path& name) const {
  std::error_code ignored;
  if (sharing_.role.kind == Role::Kind::first && sharing_.role.is_kept) fs::remove_all(name, ignored);
}

std::string Transaction::layout_digest() {
  Sha256 digest;
  for (const Member& member : members_) member.staged->add_layout(digest);
  return to_hex(digest.digest());
}

void Transaction::begin_filling() {
  for (const Member& member : members_) member.staged->begin_filling();
}

void Transaction::leave() {
  for (const Member& member : members_) member.staged->leave();
  members_.clear();
  parents_.keep();
}

void Transaction::discard() noexcept {
  std::error_code ignored;
  for (const Member& member : members_) fs::remove_all(member.staged->name(), ignored);
  members_.clear();
}

StagedFile& Transaction::add_file(const fs::path& target, bool overwrite, bool is_early) {
  finish_killed_commits(folder_of(target));
  fs::path real = replaceable_file(target, overwrite);
  parents_.make(real);
  if (sharing_.role.kind != Role::Kind::joining) remove_unfinished({real});
  const fs::path folder = folder_of(real);
  fs::path name = name_for(real);
  make_room(name);
  auto made = std::make_unique<StagedFile>(std::move(real), std::move(name), folder, sharing_.role);
  StagedFile& file = *made;
  add({std::move(made), overwrite, is_early});
  return file;
}

StagedFile& Transaction::file(const fs::path& target, bool overwrite) {
  return add_file(target, overwrite, false);
}

StagedFile& Transaction::early_file(const fs::path& target, bool overwrite) {
  return add_file(target, overwrite, true);
}

StagedFolder& Transaction::folder(const fs::path& target, bool overwrite,
                                  StagedFolder::IsReplaced is_replaced, const std::set<std::string>& inner) {
  finish_killed_commits(folder_of(without_slash(target)));
  fs::path real = replaceable_folder(without_slash(target), overwrite, inner);
  parents_.make(real);
  if (sharing_.role.kind != Role::Kind::joining) remove_unfinished({real});
  fs::path name = name_for(real);
  make_room(name);
  auto made = std::make_unique<StagedFolder>(std::move(real), std::move(name), std::move(is_replaced), inner,
                                             sharing_.role);
  StagedFolder& folder = *made;
  add({std::move(made), overwrite});
  return folder;
}

void Transaction::place_all(Renames& renames, bool sync) {
  const Staged& only = *members_.front().staged;
  const bool is_file = !fs::is_directory(only.name());
  if (members_.size() == 1 && is_file && members_.front().replaces()) {
    note();
    return renames.replace(only.name(), only.target());
  }
  const auto move = [&](const Member& member) {
    renames.move(member.staged->name(), member.staged->target());
  };
  const auto end = members_.end();
  const auto others = std::stable_partition(members_.begin(), end,
                                            [](const Member& m) { return m.is_early && !m.replaces(); });
  const auto first = std::find_if(others, end, [](const Member& m) { return m.replaces(); });
  if (first != end) std::rotate(others, first, first + 1);
  note();
  if (first == end) return (void)std::for_each(members_.begin(), end, move);
  std::optional<Journal> journal;
  if (members_.size() > 1 && sharing_.note.empty()) journal.emplace(steps(), sync);
  std::for_each(members_.begin(), others, move);
  for (auto member = end; --member != others;) {
    if (member->replaces()) old_.push_back(renames.set_aside(member->staged->target()));
  }
  renames.exchange(others->staged->name(), others->staged->target());
  std::for_each(others + 1, end, move);
}

void Transaction::note() const {
  if (sharing_.note.empty()) return;
  std::vector<Journal::Step> all = steps();
  for (Journal::Step& each : all) {
    each.temporary = fs::absolute(each.temporary);
    each.target = fs::absolute(each.target);
  }
  note_commit(sharing_.note, all);
}

std::vector<Journal::Step> Transaction::steps() const {
  std::vector<Journal::Step> out;
  for (const Member& member : members_)
    out.push_back({member.staged->name(), member.staged->target(), member.replaces()});
  return out;
}

void Transaction::place(bool sync) {
  if (members_.empty()) return;
  Renames renames;
  std::exception_ptr failure;
  std::vector<std::string> stuck;
  {
    // A signal that ends the program waits: a file with a temporary name may be the only old copy.
    const auto held = hold_temporaries();
    try {
      place_all(renames, sync);
    } catch (...) {
      failure = std::current_exception();
      stuck = renames.undo();
      std::error_code ignored;
      if (stuck.empty() && !sharing_.note.empty()) fs::remove(sharing_.note, ignored);
    }
  }
  if (!failure) return;
  old_.clear();
  if (stuck.empty()) std::rethrow_exception(failure);
  for (const Member& member : members_) member.staged->release();
  fail(Errc::io, "{}; this could not be undone: {}", message_of(failure), listed(stuck));
}

/// Removes replaced files, also those of killed runs.
void Transaction::clean_up() {
  std::vector<fs::path> targets;
  for (const Member& member : members_) targets.push_back(member.staged->target());
  members_.clear();  // and what has a temporary name now
  std::error_code ignored;
  for (const fs::path& path : old_) fs::remove_all(path, ignored);
  for (const fs::path& path : removed_) fs::remove(path, ignored);
  remove_replaced(targets);
}

void Transaction::sync_folders() const {
  std::set<fs::path> folders;
  for (const Member& member : members_) folders.insert(folder_of(member.staged->target()));
  for (const fs::path& made : parents_.made()) folders.insert(folder_of(made));
  for (const fs::path& folder : folders)
    sync_to_disk(open_file("open", folder, O_RDONLY | O_DIRECTORY), folder);
}

void Transaction::commit(bool sync) {
  Team& team = Team::world();
  team.to_first("");    // all ranks have got here
  team.from_first("");  // and the first one begins: from now on, no other one removes what it may need
  if (!team.is_first())
    for (const Member& member : members_) member.staged->leave();
  team.to_first("");
  if (team.is_first()) commit_here(sync);
  team.from_first("");
}

void Transaction::commit_here(bool sync) {
  check_interrupt();
  for (const auto& source : sources_) source->refuse_changed();
  for (const Member& member : members_) member.staged->prepare(sync);
  place(sync);
  for (const Member& member : members_) member.staged->end_keeping();
  try {
    if (sync) sync_folders();
  } catch (const Error& error) {
    clean_up();
    ErrorParts parts = error.parts();
    parts.advice = "the output exists, but may be lost if the power fails";
    throw Error(error.code(), std::move(parts));
  }
  clean_up();
}

void write_file(const fs::path& path, std::string_view content, bool overwrite) {
  Transaction transaction;
  transaction.file(path, overwrite).write(0, as_bytes(content));
  transaction.commit(false);
}

}  // namespace cbk
