#include "host/base/columns.hpp"

#include <clocale>
#include <cwchar>

#include "host/base/utf8.hpp"

namespace cbk {
namespace {

/// The C library's tables, for any user language; every UTF-8 locale has them.
locale_t utf8_locale() {
  static const locale_t locale = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  return locale;
}

}  // namespace

size_t columns_of(std::string_view text) {
  const locale_t ours = utf8_locale();
  const locale_t before = ours != nullptr ? ::uselocale(ours) : nullptr;
  size_t columns = 0;
  for (size_t i = 0; i < text.size();) {
    const auto character = decode_utf8(text, i);
    if (!character) ++i;
    const int width = character ? ::wcwidth(static_cast<wchar_t>(*character)) : 1;
    columns += width < 0 ? 1 : static_cast<size_t>(width);
  }
  if (ours != nullptr) ::uselocale(before);
  return columns;
}

}  // namespace cbk
