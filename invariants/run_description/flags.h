// Command-line flags of shardproof's programs: --name=value, checked, without surprises.
//
// Unlike Abseil's, an unknown flag or a bad value is an absl::Status, so that a program can
// print one line and exit 2.
//
//   Flags flags("audits every mode");
//   flags.Int("steps", &steps, 1, 1000, "optimizer steps");
//   absl::Status status = flags.Parse(argc, argv);
#ifndef INVARIANTS_RUN_DESCRIPTION_FLAGS_H_
#define INVARIANTS_RUN_DESCRIPTION_FLAGS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shardproof {

class Flags {
 public:
  explicit Flags(std::string summary) : summary_(std::move(summary)) {}

  // Each flag writes `target` when it is given; until then target keeps its default, which
  // Help shows. Targets must outlive Parse.
  void String(const std::string& name, std::string* target, const std::string& help);
  // The value must lie in [least, most].
  void Int(const std::string& name, int64_t* target, int64_t least, int64_t most,
           const std::string& help);
  void Unsigned(const std::string& name, uint64_t* target, const std::string& help);
  // Finite, in [least, most].
  void Double(const std::string& name, double* target, double least, double most,
              const std::string& help);
  // --name, --name=true|false|1|0.
  void Bool(const std::string& name, bool* target, const std::string& help);

  // What Help shows as the default of a flag that was declared, in place of its value: "fresh".
  void ShowDefault(absl::string_view name, const std::string& text);

  // Reads argv[1..]. InvalidArgument names the flag, its value and what is accepted: an
  // unknown or repeated flag, a missing or bad value, an argument that is no flag. A value may
  // follow as the next argument. Sets help_asked for --help.
  absl::Status Parse(int argc, const char* const* argv);
  bool help_asked() const { return help_asked_; }
  // Whether the flag was given.
  bool given(absl::string_view name) const;

  // The summary and one line a flag, for --help.
  std::string Help() const;

 private:
  struct Flag {
    std::string name;
    std::string help;
    std::string default_text;
    bool takes_value = true;
    bool given = false;
    std::function<absl::Status(absl::string_view)> set;
  };
  void Add(Flag flag) { flags_.push_back(std::move(flag)); }
  Flag* Find(absl::string_view name);
  std::string Names() const;

  std::string summary_;
  std::vector<Flag> flags_;
  bool help_asked_ = false;
};

}  // namespace shardproof

#endif  // INVARIANTS_RUN_DESCRIPTION_FLAGS_H_
