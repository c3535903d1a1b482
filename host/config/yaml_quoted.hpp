// Scalars that yaml-cpp reads wrongly, decoded from their source. In quoted ones it drops a line end before
// the closing quote, accepts an open quote at the end of the file as closed, and turns \N and \_ into bytes
// that are not UTF-8.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace cbk::yaml {

/// The text of the quoted scalar with its node (tag and anchor first, if any) at `offset` of `source`;
/// nothing if the scalar there is not quoted. A missing closing quote is a `format` error.
std::optional<std::string> decode_quoted(std::string_view source, size_t offset);

/// The folded block (">") at `offset` with its line ends at the end: the parser, which made `text` of it,
/// counts them wrongly. Nothing for any other scalar.
std::optional<std::string> end_folded(std::string_view source, size_t offset, std::string_view text);

/// Replaces pairs of surrogates ("\ud83d\ude00", as JSON writes characters beyond U+FFFF), which the parser
/// refuses, by other escapes of the same length. Nothing if there are none, or if they could not be restored
/// unambiguously.
std::optional<std::string> hide_surrogates(std::string_view source);

/// Undoes `hide_surrogates` in a scalar without escapes.
std::string restore_surrogates(std::string text);

}  // namespace cbk::yaml
