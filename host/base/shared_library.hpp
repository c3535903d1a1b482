// A system library that is loaded on first use: loading it at every start would slow the program down.
#pragma once

namespace cbk {

/// Stays loaded until the program ends. Thread-safe.
class SharedLibrary {
 public:
  /// `name`: for the dynamic loader, "libcrypto.so.3". `purpose`: the feature that needs it, for messages.
  /// Errors: `unsupported` if it is missing.
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
