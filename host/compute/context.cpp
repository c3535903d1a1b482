#include "host/compute/context.hpp"

#include "host/compute/program.hpp"

namespace cbk::compute {

Context& context() {
  thread_local Context value;
  return value;
}

void execute(KernelPtr kernel) {
  Program* program = context().program;
  for (const Operand& read : kernel->reads()) {
    const bool is_pending = program != nullptr && read.buffer->is_pending_in(program->number());
    if (!is_pending && !read.buffer->has_values()) fail_without_values();
  }
  for (const Operand& written : kernel->writes()) written.buffer->mark_written();
  if (program != nullptr) {
    program->record(std::move(kernel));
  } else {
    kernel->run();
  }
}

}  // namespace cbk::compute
