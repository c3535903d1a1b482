// The job that a command line asks for (host/streaming/job.hpp): every commit of the program is a step of it.
#pragma once

#include <memory>

#include "bindings/runtime.hpp"
#include "host/streaming/write_all.hpp"

namespace cbk::lua {

/// The job of a commit to `target`; nullptr where the command line asks for no job.
std::shared_ptr<const JobOptions> job_of(const fs::path& target);

/// Ends the program: the command has done its step of a job, and what comes after it in a script is done by
/// the step that commits.
[[noreturn]] void end_with_job(lua_State* L, const JobOptions& job, const Written& written);

/// The job in `folder` is done: further commits of the program are steps of none, unless each has a job of
/// its own.
void end_job(const fs::path& folder);

/// The program has done all that it should: the folders of its jobs are removed.
void remove_done_jobs();

/// Whether the program only computes what it wrote before.
bool is_replay();

/// A list of texts among the options; empty if it is absent.
std::vector<std::string> words_of(lua_State* L, const Options& options, const char* name);

}  // namespace cbk::lua
