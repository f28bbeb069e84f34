#include "invariants/run_description/flags.h"

#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace shardproof {
namespace {

absl::Status BadValue(const std::string& name, absl::string_view value,
                      const std::string& accepted) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, "=", value, ": accepted is ", accepted));
}

}  // namespace

void Flags::String(const std::string& name, std::string* target, const std::string& help) {
  Add({.name = name, .help = help, .default_text = *target, .set = [=](absl::string_view value) {
         *target = std::string(value);
         return absl::OkStatus();
       }});
}

void Flags::Int(const std::string& name, int64_t* target, int64_t least, int64_t most,
                const std::string& help) {
  Add({.name = name,
       .help = help,
       .default_text = absl::StrCat(*target),
       .set = [=](absl::string_view value) {
         int64_t parsed = 0;
         if (!absl::SimpleAtoi(value, &parsed) || parsed < least || parsed > most) {
           return BadValue(name, value, absl::StrCat("a whole number from ", least, " to ", most));
         }
         *target = parsed;
         return absl::OkStatus();
       }});
}

void Flags::Unsigned(const std::string& name, uint64_t* target, const std::string& help) {
  Add({.name = name,
       .help = help,
       .default_text = absl::StrCat(*target),
       .set = [=](absl::string_view value) {
         if (!absl::SimpleAtoi(value, target)) {
           return BadValue(name, value, "a whole number from 0 to 18446744073709551615");
         }
         return absl::OkStatus();
       }});
}

void Flags::Double(const std::string& name, double* target, double least, double most,
                   const std::string& help) {
  Add({.name = name,
       .help = help,
       .default_text = absl::StrCat(*target),
       .set = [=](absl::string_view value) {
         double parsed = 0;
         if (!absl::SimpleAtod(value, &parsed) || !std::isfinite(parsed) || parsed < least ||
             parsed > most) {
           return BadValue(name, value, absl::StrCat("a number from ", least, " to ", most));
         }
         *target = parsed;
         return absl::OkStatus();
       }});
}

void Flags::Bool(const std::string& name, bool* target, const std::string& help) {
  Add({.name = name,
       .help = help,
       .default_text = *target ? "true" : "false",
       .takes_value = false,
       .set = [=](absl::string_view value) {
         if (value == "true" || value == "1") {
           *target = true;
         } else if (value == "false" || value == "0") {
           *target = false;
         } else {
           return BadValue(name, value, "true, false, 1 or 0");
         }
         return absl::OkStatus();
       }});
}

Flags::Flag* Flags::Find(absl::string_view name) {
  for (Flag& flag : flags_) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

void Flags::ShowDefault(absl::string_view name, const std::string& text) {
  if (Flag* flag = Find(name)) flag->default_text = text;
}

bool Flags::given(absl::string_view name) const {
  for (const Flag& flag : flags_) {
    if (flag.name == name) return flag.given;
  }
  return false;
}

std::string Flags::Names() const {
  std::string names;
  for (const Flag& flag : flags_) {
    absl::StrAppend(&names, names.empty() ? "--" : ", --", flag.name);
  }
  return names;
}

absl::Status Flags::Parse(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (argument == "--help" || argument == "-h") {
      help_asked_ = true;
      continue;
    }
    if (argument.substr(0, 2) != "--") {
      return absl::InvalidArgumentError(
          absl::StrCat("'", argument, "' is no flag; accepted: ", Names()));
    }
    argument.remove_prefix(2);
    const size_t equals = argument.find('=');
    const absl::string_view name = argument.substr(0, equals);
    Flag* flag = Find(name);
    if (flag == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown flag --", name, "; accepted: ", Names()));
    }
    if (flag->given) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " is given twice"));
    }
    flag->given = true;
    absl::string_view value = "true";
    if (equals != absl::string_view::npos) {
      value = argument.substr(equals + 1);
    } else if (flag->takes_value) {
      if (i + 1 == argc) {
        return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value: ", flag->help));
      }
      value = argv[++i];
    }
    absl::Status status = flag->set(value);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

std::string Flags::Help() const {
  std::string text = absl::StrCat(summary_, "\n\n");
  for (const Flag& flag : flags_) {
    const std::string left =
        absl::StrCat("  --", flag.name, flag.default_text.empty() ? "" : "=", flag.default_text);
    absl::StrAppend(&text, left, std::string(left.size() < 34 ? 34 - left.size() : 1, ' '),
                    flag.help, "\n");
  }
  return text;
}

}  // namespace shardproof
