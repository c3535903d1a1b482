#include <catch2/catch.hpp>

#include "host/streaming/ledger.hpp"

namespace cbk {

TEST_CASE("the blocks of all processes are gathered with the places of their pieces", "[ledger]") {
  FinishedBlocks known(1), first(2), last(1);
  known[0].item = 7;
  first[0].item = 1;
  first[1].item = 2;
  first[1].end = 0x0a000000;  // bytes that could end a name
  last[0].item = 3;
  std::vector<fs::path> pieces{"before"};
  take_messages({message_of("one", first), message_of("", {}), message_of("three", last)}, known, pieces);
  CHECK(pieces == std::vector<fs::path>{"before", "one", "", "three"});
  REQUIRE(known.size() == 4);
  const std::vector<std::pair<uint64_t, uint32_t>> wanted = {{7, 0}, {1, 1}, {2, 1}, {3, 3}};
  for (size_t i = 0; i < known.size(); ++i) CHECK(std::pair(known[i].item, known[i].process) == wanted[i]);
  CHECK(known[2].end == 0x0a000000);
}

}  // namespace cbk
