#include "host/formats/pickle/refused_globals.hpp"

#include <algorithm>

#include "host/base/error.hpp"
#include "host/formats/pickle/globals.hpp"

namespace cbk::pickle {

void RefusedGlobals::fail_with_all(bool may_be_records) const {
  std::vector<std::string> shown;
  for (const std::string& name : names_) shown.push_back(quote(name, 60));
  size_t fits = 0;  // a message stays a line
  for (size_t length = 0; fits < shown.size() && (length += shown[fits].size() + 2) < 300;) ++fits;
  const bool is_way = may_be_records && std::ranges::none_of(names_, is_forbidden_module);
  throw Error(Errc::refused, {.problem = fmt::format(
                                  "the pickle asks for {}, which {} not plain data; nothing was executed",
                                  listed(shown, std::max<size_t>(fits, 1)), shown.size() == 1 ? "is" : "are"),
                              .advice = is_way ? "--allow-records (in Lua allow_records = true) reads "
                                                 "instances of classes as their attributes"
                                               : ""});
}

}  // namespace cbk::pickle
