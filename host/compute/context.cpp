#include "host/compute/context.hpp"

#include "host/compute/program.hpp"

namespace cbk::compute {

Context& context() {
  thread_local Context value;
  return value;
}

void execute(KernelPtr kernel) {
  for (const Operand& written : kernel->writes()) written.buffer->mark_written();
  if (Program* program = context().program) {
    program->record(std::move(kernel));
  } else {
    kernel->run();
  }
}

}  // namespace cbk::compute
