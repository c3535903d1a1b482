// Scalars that yaml-cpp does not read right, decoded from their source. Quoted ones: it drops a line end in
// front of the closing quote, takes an open quote at the end of the file for a closed one, and turns \N and
// \_ into bytes that are not UTF-8.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace cbk::yaml {

/// The text of the quoted scalar whose node (tag and anchor first, if any) starts at `offset` of `source`;
/// nothing when the scalar there is not a quoted one. A missing closing quote is a `format` error.
std::optional<std::string> decode_quoted(std::string_view source, size_t offset);

/// The folded block (">") at `offset` with the line ends that it has at its end: the parser, which made
/// `text` of it, counts them wrongly. Nothing for any other scalar.
std::optional<std::string> end_folded(std::string_view source, size_t offset, std::string_view text);

/// Pairs of surrogates ("\ud83d\ude00", as JSON writes characters beyond U+FFFF), which the parser refuses,
/// as other escapes of the same length. Nothing when there are none, or when they could not be distinguished
/// from others again.
std::optional<std::string> hide_surrogates(std::string_view source);

/// Undoes it in a scalar that has no escapes.
std::string restore_surrogates(std::string text);

}  // namespace cbk::yaml
