// The pickles that Cerebras H5 files keep for Python objects.
#pragma once

#include "host/formats/hdf5/file.hpp"

namespace cbk::h5 {

/// The value of a stored pickle, charged to `memory`. Errors: `refused` for anything beyond plain data, as in
/// pickle::load.
Value unpickle_stored(std::string_view bytes, bool allow_records, MemoryBudget& memory);

/// Values that are read one after the other; one error names all refused values.
class RefusedValues {
 public:
  /// The result of `read`; a default value if it is refused, which `fail_if_any` reports.
  template <typename Read>
  auto attempt(const std::string& key, Read&& read) -> decltype(read()) {
    try {
      return within(quote(key), read);
    } catch (const Error& error) {
      if (error.code() != Errc::refused) throw;
      if (count_++ == 0) first_ = error;
      return {};
    }
  }
  /// Raises the error of the first refused value, with the number of others.
  void fail_if_any() const;

 private:
  std::optional<Error> first_;
  size_t count_ = 0;
};

/// Reads all pickles of a file that will be copied as a file, or changed in place: pickles that cannot be
/// read as data must not be passed on. Errors: those of `unpickle_stored`, with the name of the object.
void check_pickles(hdf5::File& file, bool allow_records);

}  // namespace cbk::h5
