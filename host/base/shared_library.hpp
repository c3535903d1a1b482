// A library of the system that is loaded when it is first needed: it would slow down every start of the
// program.
#pragma once

namespace cbk {

/// Stays loaded until the program ends. Thread-safe.
class SharedLibrary {
 public:
  /// `name`: as the dynamic loader finds it, "libcrypto.so.3". `purpose`: what needs it, for the message.
  /// Errors: `unsupported` if it is not there.
  SharedLibrary(const char* name, const char* purpose);

  /// The function of this name. Errors: `unsupported` if the library has none.
  template <typename Function>
  [[nodiscard]] Function* function(const char* name) const {
    return reinterpret_cast<Function*>(address(name));
  }

 private:
  [[nodiscard]] void* address(const char* name) const;

  const char* name_;
  void* handle_;
};

}  // namespace cbk
