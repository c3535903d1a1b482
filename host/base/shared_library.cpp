#include "host/base/shared_library.hpp"

#include <dlfcn.h>

#include "host/base/error.hpp"

namespace cbk {

SharedLibrary::SharedLibrary(const char* name, const char* purpose)
    : name_(name), handle_(::dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) fail(Errc::unsupported, "{} needs the library {}: {}", purpose, name, ::dlerror());
}

void* SharedLibrary::address(const char* name) const {
  void* found = ::dlsym(handle_, name);
  if (found == nullptr) fail(Errc::unsupported, "the library {} has no function {}", name_, name);
  return found;
}

}  // namespace cbk
