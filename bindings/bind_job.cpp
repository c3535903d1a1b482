#include <map>
#include <set>

#include "bindings/job.hpp"
#include "bindings/modules.hpp"

namespace cbk::lua {
namespace {

std::shared_ptr<const JobOptions>& current() {
  static std::shared_ptr<const JobOptions> job;
  return job;
}

/// cbk.set_job { folder, action = "run" | "plan" | "work" | "finish" | "replay", part, parts, command,
/// directory }: every commit from here on is a step of this job. `part` counts from 1. Without a folder,
/// "run" uses one beside the output. `directory`: where the program goes on.
int set_job(lua_State* L) {
  static const std::map<std::string, JobOptions::Action> actions = {{"run", JobOptions::Action::run},
                                                                    {"plan", JobOptions::Action::plan},
                                                                    {"work", JobOptions::Action::work},
                                                                    {"finish", JobOptions::Action::finish},
                                                                    {"replay", JobOptions::Action::replay}};
  const Options options(
      L, 1, {"folder", "action", "part", "parts", "command", "directory", "provenance", "output"});
  JobOptions job;
  if (options.has("folder")) job.folder = fs::absolute(options.text("folder"));
  job.version = CBK_VERSION;
  const std::string action = options.text("action");
  if (!actions.contains(action)) fail(Errc::usage, "set_job: unknown action {}", quote(action));
  job.action = actions.at(action);
  job.share.parts = static_cast<int>(options.integer("parts", 1, 1 << 20).value_or(1));
  job.share.part = static_cast<int>(options.integer("part", 1, job.share.parts).value_or(1)) - 1;
  job.command = words_of(L, options, "command");
  if (options.has("provenance")) job.provenance = fs::absolute(options.text("provenance"));
  job.output = options.text("output");
  if (const std::string directory = options.text("directory"); !directory.empty())
    fs::current_path(directory);
  current() = std::make_shared<const JobOptions>(std::move(job));
  return 0;
}

double seconds_of(const fs::path& path) {
  return static_cast<double>(MappedFile::open(path)->modified()) / 1e9;
}

/// cbk.complete_job(folder): whether the folder is that of a job that was killed while it was removed. Then
/// its output is complete, and the folder is removed now.
int complete_job(lua_State* L) {
  lua_pushboolean(L, JobFolder::complete_removed(check_path(L, 1)));
  return 1;
}

/// cbk.has_job(): whether a commit would be a step of a job.
int has_job(lua_State* L) {
  lua_pushboolean(L, current() != nullptr);
  return 1;
}

/// What was written of a job: when it was begun, and a list of { name, bytes, modified } for its journals
/// (`bytes` of the elements, each block once). Times are seconds since 1970.
int job_journals(lua_State* L) {
  std::set<std::tuple<uint32_t, uint64_t, int64_t>> known;
  const fs::path folder = check_path(L, 1);
  lua_pushnumber(L, seconds_of(folder / "plan.json"));
  lua_newtable(L);
  int count = 0;
  for (const fs::path& path : journals_in(folder)) {
    uint64_t bytes = 0;
    for (const FinishedBlock& block : read_ledger(path))
      if (known.emplace(block.output, block.item, block.begin).second) bytes += block.bytes;
    lua_createtable(L, 0, 3);
    set_field(L, "name", path.stem().native());
    set_integer(L, "bytes", bytes);
    lua_pushnumber(L, seconds_of(path));
    lua_setfield(L, -2, "modified");
    lua_rawseti(L, -2, ++count);
  }
  return 2;
}

}  // namespace

std::vector<std::string> words_of(lua_State* L, const Options& options, const char* name) {
  std::vector<std::string> out;
  options.push(name);
  for (size_t i = 1; lua_istable(L, -1) && i <= lua_objlen(L, -1); ++i) {
    lua_rawgeti(L, -1, static_cast<int>(i));
    out.emplace_back(check_string(L, -1));
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return out;
}

std::vector<fs::path>& done_jobs() {
  static std::vector<fs::path> folders;
  return folders;
}

void remove_done_jobs() {
  for (const fs::path& folder : done_jobs()) JobFolder::remove(folder);
}

void end_job(const fs::path& folder) {
  if (!folder.empty()) done_jobs().push_back(fs::absolute(folder));
  if (current() != nullptr && !current()->folder.empty()) current() = nullptr;
}

bool is_replay() {
  return current() != nullptr && current()->action == JobOptions::Action::replay;
}

std::shared_ptr<const JobOptions> job_of(const fs::path& target) {
  const auto& job = current();
  if (job == nullptr || !job->folder.empty()) return job;
  JobOptions beside = *job;
  const fs::path whole = fs::absolute(target);
  beside.folder = (whole.has_filename() ? whole : whole.parent_path()).string() + ".job";
  return std::make_shared<const JobOptions>(std::move(beside));
}

void end_with_job(lua_State* L, const JobOptions& job, const Written& written) {
  lua_getglobal(L, "require");
  push(L, std::string_view("cbk.job"));
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "end_step");
  lua_createtable(L, 0, 5);
  set_boolean(L, "is_plan", job.action == JobOptions::Action::plan);
  set_field(L, "folder", job.folder.native());
  set_integer(L, "part", static_cast<uint64_t>(written.share.part) + 1);
  set_integer(L, "parts", static_cast<uint64_t>(written.share.parts));
  if (job.action == JobOptions::Action::replay) {
    push_strings(L, written.differences);
    lua_setfield(L, -2, "differences");
  }
  lua_call(L, 1, 0);
  std::abort();  // it ends the program
}

/// cbk.provenance_differences(path, output): what differs between an output and a provenance, a line each.
int provenance_differences(lua_State* L) {
  push_strings(L, differences(check_path(L, 1), check_path(L, 2)));
  return 1;
}

/// cbk.provenance_command(path): the words of the command that made an output, the folder where it ran, and
/// the path of the output then.
int provenance_command(lua_State* L) {
  const RecordedCommand command = recorded_command(check_path(L, 1));
  push_strings(L, command.words);
  push(L, std::string_view(command.folder));
  push(L, std::string_view(command.output));
  return 3;
}

void bind_job(lua_State* L) {
  static const luaL_Reg functions[] = {{"set_job", guarded<set_job>},
                                       {"has_job", guarded<has_job>},
                                       {"complete_job", guarded<complete_job>},
                                       {"job_journals", guarded<job_journals>},
                                       {"provenance_differences", guarded<provenance_differences>},
                                       {"provenance_command", guarded<provenance_command>},
                                       {nullptr, nullptr}};
  set_functions(L, functions);
}

}  // namespace cbk::lua
