#include "invariants/run_description/message_text.h"

#include "absl/strings/ascii.h"

namespace shardproof {

std::string Shown(absl::string_view text) {
  constexpr size_t kLongest = 100;
  std::string shown(text.substr(0, kLongest));
  for (char& c : shown) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = '?';
  }
  return text.size() > kLongest ? shown + "..." : shown;
}

}  // namespace shardproof
