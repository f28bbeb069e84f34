// Runs a fuzz target without libFuzzer: each file of a corpus, then mutations of them from a seed.
//
//   --corpus=FOLDER,FILE,... --runs=20000 --seed=1
//
// So a parser is fuzzed a little in every test, by any compiler; libFuzzer, which sees what an
// input covers, is for longer campaigns (README.md).
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "invariants/run_description/flags.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace shardproof {
namespace {

// What parsers look for, and numbers that break arithmetic.
constexpr const char* kTokens[] = {"-1",
                                   "0",
                                   "1",
                                   "2147483647",
                                   "4294967296",
                                   "9223372036854775807",
                                   "-9223372036854775808",
                                   "1e308",
                                   "1e999",
                                   "NaN",
                                   "null",
                                   "true",
                                   "[]",
                                   "{}",
                                   "\"",
                                   "\\",
                                   "\\u0000",
                                   "\n",
                                   ",",
                                   ";",
                                   ":",
                                   "=",
                                   "@",
                                   "+",
                                   "x",
                                   "!",
                                   "%3B",
                                   "\xff",
                                   "[[[[[[[[",
                                   "}",
                                   "]"};

class Mutator {
 public:
  Mutator(std::vector<std::string> corpus, uint64_t seed)
      : corpus_(std::move(corpus)), random_(seed) {}

  // One to four edits of a file of the corpus.
  std::string Next() {
    std::string text = corpus_[Below(corpus_.size())];
    for (size_t edits = 1 + Below(4); edits > 0; --edits) Edit(text);
    return text;
  }

 private:
  size_t Below(size_t count) { return count == 0 ? 0 : random_() % count; }

  void Edit(std::string& text) {
    const size_t at = Below(text.size() + 1);
    const size_t length = std::min(Below(16), text.size() - at);
    switch (Below(6)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random_());
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(Below(text.size() + 1), length));
        break;
      case 3:
        text.replace(at, length, kTokens[Below(std::size(kTokens))]);
        break;
      case 4:
        text.resize(at);
        break;
      default: {
        const std::string& other = corpus_[Below(corpus_.size())];
        text = text.substr(0, at) + other.substr(Below(other.size() + 1));
      }
    }
  }

  const std::vector<std::string> corpus_;
  std::mt19937_64 random_;
};

std::string Content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

std::vector<std::string> ReadCorpus(const std::string& places) {
  std::vector<std::filesystem::path> paths;
  for (const std::string& place : std::vector<std::string>(absl::StrSplit(places, ','))) {
    if (std::filesystem::is_directory(place)) {
      for (const auto& entry : std::filesystem::directory_iterator(place)) {
        if (entry.is_regular_file()) paths.push_back(entry.path());
      }
    } else if (std::filesystem::is_regular_file(place)) {
      paths.push_back(place);
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> corpus;
  for (const std::filesystem::path& path : paths) corpus.push_back(Content(path));
  return corpus;
}

void RunOne(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

int Main(int argc, char** argv) {
  std::string places;
  int64_t runs = 20000;
  uint64_t seed = 1;
  Flags flags("runs a fuzz target on a corpus and mutations of it");
  flags.String("corpus", &places, "folders and files, joined by ','");
  flags.Int("runs", &runs, 0, INT64_MAX, "mutations");
  flags.Unsigned("seed", &seed, "of the mutations");
  const absl::Status parsed = flags.Parse(argc, argv);
  if (!parsed.ok()) {
    std::cerr << "fuzzer: " << parsed.message() << "\n";
    return 2;
  }
  const std::vector<std::string> corpus = ReadCorpus(places);
  if (corpus.empty()) {
    std::cerr << "fuzzer: --corpus=" << places << " has no file\n";
    return 2;
  }
  for (const std::string& input : corpus) RunOne(input);
  Mutator mutator(corpus, seed);
  for (int64_t run = 0; run < runs; ++run) RunOne(mutator.Next());
  std::cout << corpus.size() << " files and " << runs << " mutations\n";
  return 0;
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) { return shardproof::Main(argc, argv); }
