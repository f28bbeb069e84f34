#include "invariants/run_description/json_syntax.h"

#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "invariants/run_description/message_text.h"

namespace shardproof {
namespace {

constexpr size_t kMaxDepth = 64;

// Keeps the keys of the open objects, and the first error.
class SyntaxHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  absl::Status status() const { return status_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }

  bool start_object(std::size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(); }
  bool end_array() override { return Close(); }

  bool key(string_t& key) override {
    if (keys_.back().insert(key).second) return true;
    return Fail(absl::StrCat("the key '", Shown(key), "' is repeated; accepted: each key once"));
  }

  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::json::exception& error) override {
    // The library puts its own error id, in brackets, in front of the reason.
    const std::string what = error.what();
    const size_t bracket = what.find("] ");
    const size_t reason = bracket == std::string::npos ? 0 : bracket + 2;
    return Fail(absl::StrCat("not JSON: ", Shown(what.substr(reason))));
  }

 private:
  bool Open() {
    if (keys_.size() == kMaxDepth) {
      return Fail(
          absl::StrCat("nested deeper than ", kMaxDepth, " levels; accepted: at most ", kMaxDepth));
    }
    keys_.emplace_back();
    return true;
  }
  bool Close() {
    keys_.pop_back();
    return true;
  }
  bool Fail(const std::string& message) {
    status_ = absl::InvalidArgumentError(message);
    return false;
  }

  std::vector<std::unordered_set<std::string>> keys_;
  absl::Status status_;
};

}  // namespace

absl::Status CheckJsonSyntax(absl::string_view text) {
  SyntaxHandler handler;
  nlohmann::json::sax_parse(text.begin(), text.end(), &handler);
  return handler.status();
}

}  // namespace shardproof
