// Origins written by hand: those of a correct step, and one of each kind of fault.
#include "invariants/checks/provenance.h"

#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "invariants/checks/hand_made.h"

namespace shardproof {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kRanks = 2;
constexpr int32_t kMicroBatches = 2;

// A step of replicated training of HandMadeRun: both ranks hold and update everything.
class OriginScript {
 public:
  OriginScript(const RunDescription& run, int64_t step) : run_(run) {
    observed_.step = step;
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      RankEvents events;
      events.ranks = {rank, 1, 1};
      events.buffers.resize(1);
      events.buffers[0].bucket = 0;
      observed_.events.push_back(events);
      for (int32_t tensor = 0; tensor < 4; ++tensor) AddTensor(rank, tensor);
    }
  }

  StepObservation& observed() { return observed_; }
  // The first record of this use, rank and tensor.
  OriginRecord& Record(OriginUse use, int32_t rank, int32_t tensor) {
    for (OriginRecord& record : observed_.origins.records) {
      if (record.use == use && record.rank == rank && record.tensor == tensor) return record;
    }
    ADD_FAILURE() << "no such record";
    return observed_.origins.records[0];
  }
  Origin& Value(OriginUse use, int32_t rank, int32_t tensor) {
    return observed_.origins.runs[Record(use, rank, tensor).first_run].origin;
  }
  // The terms that a tensor's gradient has; a copy, to be changed.
  std::vector<OriginTerm> Terms(int32_t tensor) const {
    std::vector<OriginTerm> terms;
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      for (int32_t k = 0; k < run_.data.num_micro_batches; ++k) {
        if (!IsUsed(run_, tensor, observed_.step, Rank{rank}, k)) continue;
        OriginTerm term;
        term.step = observed_.step;
        term.rank = rank;
        term.micro_batch = k;
        term.stage = tensor / 2;
        term.scalings = 1;
        term.scale = 1.0 / (kRanks * kMicroBatches);
        term.clips = run_.clip_grad_norm > 0 ? 1 : 0;
        terms.push_back(term);
      }
    }
    return terms;
  }
  int32_t AddTerms(const std::vector<OriginTerm>& terms) {
    observed_.origins.term_sets.push_back(terms);
    return static_cast<int32_t>(observed_.origins.term_sets.size()) - 1;
  }
  void Add(OriginUse use, int32_t rank, int32_t tensor, OriginKind kind, int64_t version,
           int32_t terms = -1) {
    OriginRecord record;
    record.use = use;
    record.rank = rank;
    record.event = use >= OriginUse::kHeldParameter ? -1 : 7;
    record.buffer = 0;
    record.tensor = record.named_tensor = record.hyper_parameters_of = tensor;
    record.range = {0, Elements(run_.model.tensors[tensor])};
    record.step_count = version + 1;
    record.first_run = static_cast<uint32_t>(observed_.origins.runs.size());
    record.run_count = 1;
    Origin origin;
    origin.kind = kind;
    origin.tensor = tensor;
    origin.version = static_cast<int32_t>(version);
    origin.terms = terms;
    observed_.origins.runs.push_back({record.range.count, origin});
    observed_.origins.records.push_back(record);
  }

 private:
  void AddTensor(int32_t rank, int32_t tensor) {
    const bool trainable = run_.model.tensors[tensor].trainable;
    int64_t before = 0;
    for (int64_t step = 0; step < observed_.step; ++step) {
      before += trainable && IsUsedInStep(run_, tensor, step);
    }
    for (int32_t k = 0; k < run_.data.num_micro_batches; ++k) {
      Add(OriginUse::kForwardParameter, rank, tensor, OriginKind::kParameter, before);
      Add(OriginUse::kBackwardParameter, rank, tensor, OriginKind::kParameter, before);
    }
    if (!trainable) {
      Add(OriginUse::kHeldParameter, rank, tensor, OriginKind::kParameter, 0);
      return;
    }
    const int32_t terms = AddTerms(Terms(tensor));
    const bool updated = IsUsedInStep(run_, tensor, observed_.step);
    if (updated) {
      Add(OriginUse::kUpdateParameter, rank, tensor, OriginKind::kParameter, before);
      Add(OriginUse::kUpdateGradient, rank, tensor, OriginKind::kGradient, 0, terms);
      Add(OriginUse::kUpdateExpAvg, rank, tensor, OriginKind::kExpAvg, before);
      Add(OriginUse::kUpdateExpAvgSq, rank, tensor, OriginKind::kExpAvgSq, before);
    }
    const int64_t after = before + (updated ? 1 : 0);
    Add(OriginUse::kHeldParameter, rank, tensor, OriginKind::kParameter, after);
    Add(OriginUse::kHeldGradient, rank, tensor, OriginKind::kGradient, 0, terms);
    Add(OriginUse::kHeldExpAvg, rank, tensor, OriginKind::kExpAvg, after);
    Add(OriginUse::kHeldExpAvgSq, rank, tensor, OriginKind::kExpAvgSq, after);
  }

  const RunDescription& run_;
  StepObservation observed_;
};

class ProvenanceTest : public ::testing::Test {
 protected:
  ProvenanceTest() { run_.data.num_micro_batches = kMicroBatches; }

  // Two steps; `edit` changes the second.
  CheckResult Judge(const std::function<void(OriginScript&)>& edit) {
    const std::unique_ptr<Check> check = MakeProvenance();
    check->Begin(run_);
    for (int64_t step = 0; step < 2; ++step) {
      OriginScript script(run_, step);
      if (step == 1) edit(script);
      check->Step(script.observed(), nullptr);
    }
    return check->Finish();
  }

  // The only violation of such a run.
  Violation Only(const std::function<void(OriginScript&)>& edit) {
    const CheckResult result = Judge(edit);
    EXPECT_EQ(result.verdict, Verdict::kFail) << result.reason;
    for (size_t i = 1; i < result.violations.size(); ++i) {
      ADD_FAILURE() << Describe(result, result.violations[i]);
    }
    return result.violations.empty() ? Violation() : result.violations[0];
  }

  // The violation when the terms of rank 1's update of tensor 2 are changed.
  Violation OnlyTerms(const std::function<void(std::vector<OriginTerm>&)>& edit) {
    return Only([&](OriginScript& script) {
      std::vector<OriginTerm> terms = script.Terms(2);
      edit(terms);
      script.Value(OriginUse::kUpdateGradient, 1, 2).terms = script.AddTerms(terms);
    });
  }

  RunDescription run_ = HandMadeRun(Mode::kReplicated, kRanks);
};

TEST_F(ProvenanceTest, CorrectOriginsPass) {
  CheckResult result = Judge([](OriginScript&) {});
  EXPECT_EQ(result.name, "provenance");
  EXPECT_EQ(result.verdict, Verdict::kPass) << result.reason;
  run_.model.tensors[1].trainable = false;
  run_.usage = {{.tensor = 0, .rank = 1}, {.tensor = 3, .steps = StepUse::kEven}};
  result = Judge([](OriginScript&) {});
  EXPECT_EQ(result.verdict, Verdict::kPass) << result.reason;
}

TEST_F(ProvenanceTest, AMissingContributionIsNamed) {
  const Violation violation =
      OnlyTerms([](std::vector<OriginTerm>& terms) { terms.erase(terms.begin() + 3); });
  EXPECT_EQ(violation.actual, "rank 1's micro-batch 1 is missing");
  EXPECT_EQ(violation.rank, 1);
  EXPECT_EQ(violation.step, 1);
  EXPECT_EQ(violation.event, 7);
  EXPECT_EQ(violation.tensor, "layers.1.weight");
  EXPECT_EQ(violation.element, 0);
  EXPECT_EQ(violation.unit, "bucket 0");
  EXPECT_EQ(violation.expected, "4 contributions of step 1, each once, scaled by 0.25");
  EXPECT_EQ(violation.ratio, 0.75);
  EXPECT_THAT(violation.likely_cause, HasSubstr("overwritten"));
}

TEST_F(ProvenanceTest, AMissingRankIsNamedOnce) {
  const Violation violation = OnlyTerms([](std::vector<OriginTerm>& terms) { terms.resize(2); });
  EXPECT_EQ(violation.actual, "rank 1 is missing");
  EXPECT_EQ(violation.ratio, 0.5);
  EXPECT_THAT(violation.likely_cause, HasSubstr("a reduction over the ranks that did not run"));
  EXPECT_THAT(violation.likely_cause, HasSubstr("the ratio is 1/N or 1/K"));
}

TEST_F(ProvenanceTest, DoubleContributionsAreNamed) {
  EXPECT_EQ(OnlyTerms([](std::vector<OriginTerm>& terms) { terms[1].count = 2; }).actual,
            "rank 0's micro-batch 1 is counted twice");
  EXPECT_EQ(
      OnlyTerms([](std::vector<OriginTerm>& terms) { terms[0].count = terms[1].count = 3; }).actual,
      "rank 0 is counted 3 times");
  // Once as it should be, and once unscaled: two terms of one contribution.
  EXPECT_EQ(OnlyTerms([](std::vector<OriginTerm>& terms) {
              terms.insert(terms.begin(), terms[0]);
              terms[0].scalings = 0;
              terms[0].scale = 1;
            }).actual,
            "rank 0's micro-batch 0 is counted twice; rank 0's micro-batch 0 is scaled 0 times");
}

TEST_F(ProvenanceTest, WrongScalesAreNamed) {
  Violation violation = OnlyTerms([](std::vector<OriginTerm>& terms) {
    for (OriginTerm& term : terms) term.scalings = 0, term.scale = 1;
  });
  EXPECT_EQ(violation.actual, "every contribution is scaled 0 times");
  EXPECT_EQ(violation.ratio, 4);
  violation = OnlyTerms([](std::vector<OriginTerm>& terms) {
    terms[2].scalings = 2;
    terms[2].scale = 0.0625;
  });
  EXPECT_EQ(violation.actual, "rank 1's micro-batch 0 is scaled twice (by 0.0625 in all)");
}

TEST_F(ProvenanceTest, TheSameProductOfOtherFactorsIsAsGood) {
  const CheckResult result = Judge([](OriginScript& script) {
    std::vector<OriginTerm> terms = script.Terms(2);
    for (OriginTerm& term : terms) term.scalings = 2;
    script.Value(OriginUse::kUpdateGradient, 1, 2).terms = script.AddTerms(terms);
  });
  EXPECT_EQ(result.verdict, Verdict::kPass);
}

TEST_F(ProvenanceTest, ContributionsOfOtherStepsAreNamed) {
  const Violation violation = OnlyTerms([](std::vector<OriginTerm>& terms) { terms[0].step = 0; });
  EXPECT_EQ(violation.actual,
            "rank 0's micro-batch 0 is missing; rank 0's micro-batch 0 of step 0 is counted");
}

TEST_F(ProvenanceTest, ContributionsOfRanksThatDoNotUseTheTensorAreNamed) {
  run_.usage = {{.tensor = 2, .rank = 0}};
  const Violation violation = OnlyTerms([](std::vector<OriginTerm>& terms) {
    terms.push_back(terms[0]);
    terms.back().rank = 1;
  });
  EXPECT_EQ(violation.actual, "rank 1's micro-batch 0 is counted, and does not use the tensor");
}

TEST_F(ProvenanceTest, StaleParametersAreNamedWhereTheyAreRead) {
  for (OriginUse use : {OriginUse::kForwardParameter, OriginUse::kBackwardParameter}) {
    const Violation violation =
        Only([&](OriginScript& script) { script.Value(use, 0, 1).version = 0; });
    EXPECT_THAT(violation.rule, HasSubstr("after every update so far"));
    EXPECT_EQ(violation.expected, "version 1");
    EXPECT_EQ(violation.actual, "version 0");
    EXPECT_EQ(violation.tensor, "layers.0.bias");
  }
}

TEST_F(ProvenanceTest, AnUpdateOfAStaleParameterBreaksTheRuleOfUpdates) {
  const Violation violation = Only(
      [](OriginScript& script) { script.Value(OriginUse::kUpdateParameter, 0, 1).version = 2; });
  EXPECT_THAT(violation.rule, HasSubstr("is updated once"));
  EXPECT_EQ(violation.expected, "version 1");
  EXPECT_EQ(violation.actual, "version 2");
}

TEST_F(ProvenanceTest, AnUpdateThatIsMissingOrRanTwiceIsFoundAtTheBoundary) {
  Violation violation =
      Only([](OriginScript& script) { script.Value(OriginUse::kHeldParameter, 1, 3).version = 1; });
  EXPECT_THAT(violation.rule, HasSubstr("after the step"));
  EXPECT_EQ(violation.expected, "version 2");
  EXPECT_EQ(violation.event, -1);
  violation =
      Only([](OriginScript& script) { script.Value(OriginUse::kHeldExpAvgSq, 1, 3).version = 3; });
  EXPECT_THAT(violation.likely_cause, HasSubstr("ran twice"));
}

TEST_F(ProvenanceTest, AnElementInAnothersPlaceNamesBoth) {
  const Violation violation = Only([](OriginScript& script) {
    Origin& value = script.Value(OriginUse::kHeldParameter, 0, 1);
    value.tensor = 2;
    value.element = 4;
  });
  EXPECT_EQ(violation.expected, "element 0 of layers.0.bias, version 2");
  EXPECT_THAT(violation.actual,
              HasSubstr("element 4 of layers.1.weight lies where element 0 of layers.0.bias "
                        "belongs"));
}

TEST_F(ProvenanceTest, TheRunThatIsWrongNamesItsFirstElement) {
  const Violation violation = Only([](OriginScript& script) {
    OriginRecord& record = script.Record(OriginUse::kForwardParameter, 1, 0);
    StepOrigins& origins = script.observed().origins;
    Origin parameter = origins.runs[record.first_run].origin;
    record.first_run = static_cast<uint32_t>(origins.runs.size());
    record.run_count = 3;
    Origin freed;
    freed.kind = OriginKind::kFreed;
    freed.rank = 1;
    freed.buffer = 0;
    origins.runs.push_back({2, parameter});
    origins.runs.push_back({1, freed});
    origins.runs.push_back({3, Advanced(parameter, 3)});
  });
  EXPECT_EQ(violation.element, 2);
  EXPECT_EQ(violation.actual, "freed memory of bucket 0");
}

TEST_F(ProvenanceTest, PaddingThatIsAddedIsNamed) {
  const auto add_padding = [](OriginScript& script, Origin& value) {
    OriginMixture mixture;
    mixture.left = value;
    mixture.right.kind = OriginKind::kPadding;
    mixture.right.rank = mixture.right.buffer = 0;
    script.observed().origins.mixtures.push_back(mixture);
    value = Origin();
    value.kind = OriginKind::kMixed;
    value.mixture = 0;
  };
  Violation violation = Only([&](OriginScript& script) {
    add_padding(script, script.Value(OriginUse::kUpdateGradient, 0, 0));
  });
  EXPECT_EQ(violation.actual,
            "gradient of element 0 of layers.0.weight + padding of bucket 0: padding was added");
  // A place of padding that somebody wrote to.
  violation = Only([&](OriginScript& script) {
    script.Add(OriginUse::kHeldGradient, 1, 3, OriginKind::kGradient, 0, /*terms=*/0);
    script.observed().origins.records.back().tensor = -1;
  });
  EXPECT_EQ(violation.rule, "padding stays padding");
  EXPECT_EQ(violation.rank, 1);
  EXPECT_EQ(violation.unit, "bucket 0");
  EXPECT_EQ(violation.actual, "gradient of element 0 of layers.1.bias");
}

TEST_F(ProvenanceTest, UpdatesOfOtherTensorsCountsAndGroupsAreNamed) {
  Violation violation = Only([](OriginScript& script) {
    script.Record(OriginUse::kUpdateParameter, 0, 1).named_tensor = 3;
  });
  EXPECT_EQ(violation.actual,
            "the update of layers.1.bias lies where element 0 of layers.0.bias belongs");
  violation = Only([](OriginScript& script) {
    script.Record(OriginUse::kUpdateParameter, 0, 1).step_count = 3;
  });
  EXPECT_EQ(violation.expected, "step count 2");
  EXPECT_EQ(violation.actual, "step count 3");
  run_.optimizer.groups = {{.tensors = {0}, .weight_decay = 0}};
  violation = Only([](OriginScript& script) {
    script.Record(OriginUse::kUpdateParameter, 0, 1).hyper_parameters_of = 0;
  });
  EXPECT_EQ(violation.expected, "the hyper-parameters of layers.0.bias");
  EXPECT_EQ(violation.actual, "those of layers.0.weight");
}

TEST_F(ProvenanceTest, AnUpdateOfAnUnusedTensorIsNamed) {
  run_.usage = {{.tensor = 2, .steps = StepUse::kEven}};
  const Violation violation = Only([](OriginScript& script) {
    script.Add(OriginUse::kUpdateParameter, 0, 2, OriginKind::kParameter, 1);
  });
  EXPECT_EQ(violation.expected, "no update");
}

TEST_F(ProvenanceTest, AForwardThatIsLeftOutIsCounted) {
  const Violation violation = Only([](OriginScript& script) {
    OriginRecord& record = script.Record(OriginUse::kForwardParameter, 1, 2);
    record.use = OriginUse::kBackwardParameter;
  });
  EXPECT_EQ(violation.rank, 1);
  EXPECT_EQ(violation.tensor, "layers.1.weight");
  EXPECT_EQ(violation.expected, "2 reads in forward");
  EXPECT_EQ(violation.actual, "1");
}

class ClippingTest : public ProvenanceTest {
 protected:
  ClippingTest() { run_.clip_grad_norm = 1; }

  // Both ranks have whole gradients; each clips by the norms of `sources`, which read all tensors
  // but `left_out` and `twice` again.
  static void AddClip(OriginScript& script, const std::vector<int32_t>& sources,
                      int32_t left_out = -1, int32_t twice = -1) {
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      for (int32_t tensor = 0; tensor < 4; ++tensor) {
        std::vector<OriginTerm> terms = script.Terms(tensor);
        for (OriginTerm& term : terms) term.clips = 0;
        const int32_t plain = script.AddTerms(terms);
        const auto read = [&] {
          script.Add(OriginUse::kNormGradient, rank, tensor, OriginKind::kGradient, 0, plain);
        };
        if (tensor != left_out) read();
        if (tensor == twice) read();
      }
      std::vector<OriginTerm> norms;
      for (int32_t source : sources) {
        OriginTerm term;
        term.step = script.observed().step;
        term.rank = source < 0 ? rank : source;
        norms.push_back(term);
      }
      OriginRecord record;
      record.use = OriginUse::kClipCoefficient;
      record.rank = rank;
      record.event = 8;
      record.range = {0, 1};
      record.first_run = static_cast<uint32_t>(script.observed().origins.runs.size());
      record.run_count = 1;
      Origin origin;
      origin.kind = OriginKind::kCoefficient;
      origin.terms = script.AddTerms(norms);
      script.observed().origins.runs.push_back({1, origin});
      script.observed().origins.records.push_back(record);
    }
  }
};

TEST_F(ClippingTest, ANormThatCoversAllOncePasses) {
  const CheckResult result = Judge([](OriginScript& script) { AddClip(script, /*sources=*/{-1}); });
  EXPECT_EQ(result.verdict, Verdict::kPass);
}

TEST_F(ClippingTest, GradientsThatWereClippedTwiceOrNotAreNamed) {
  EXPECT_EQ(OnlyTerms([](std::vector<OriginTerm>& terms) {
              for (OriginTerm& term : terms) term.clips = 0;
            }).actual,
            "every contribution is clipped 0 times");
  EXPECT_EQ(OnlyTerms([](std::vector<OriginTerm>& terms) { terms[0].clips = 2; }).actual,
            "rank 0's micro-batch 0 is clipped twice");
}

TEST_F(ClippingTest, ANormThatLeavesOutOrRepeatsElementsIsNamed) {
  CheckResult result = Judge([](OriginScript& script) { AddClip(script, {-1}, /*left_out=*/2); });
  ASSERT_EQ(result.violation_count, 2);  // of each rank
  EXPECT_EQ(result.violations[0].actual, "a norm without element 0 of layers.1.weight");
  result = Judge([](OriginScript& script) { AddClip(script, {-1}, -1, /*twice=*/3); });
  ASSERT_EQ(result.violation_count, 2);
  EXPECT_EQ(result.violations[0].actual, "element 0 of layers.1.bias twice");
  // Summed over ranks that have whole gradients.
  result = Judge([](OriginScript& script) { AddClip(script, {0, 1}); });
  ASSERT_EQ(result.violation_count, 2);
  EXPECT_EQ(result.violations[0].actual, "element 0 of layers.0.weight twice");
}

TEST_F(ClippingTest, ANormOfWhatIsNoGradientIsNamed) {
  const CheckResult result = Judge([](OriginScript& script) {
    AddClip(script, {-1});
    script.Value(OriginUse::kNormGradient, 1, 3).kind = OriginKind::kFreed;
    script.Value(OriginUse::kNormGradient, 1, 3).rank = 1;
    script.Value(OriginUse::kNormGradient, 1, 3).buffer = 0;
  });
  ASSERT_EQ(result.violation_count, 2);  // that, and that the gradient is not there
  EXPECT_EQ(result.violations[0].actual, "freed memory of bucket 0");
  EXPECT_EQ(result.violations[1].actual, "a norm without element 0 of layers.1.bias");
}

// --- evidence ---

TEST_F(ProvenanceTest, WithoutOriginsNothingIsObserved) {
  const CheckResult result =
      Judge([](OriginScript& script) { script.observed().origins.records.clear(); });
  EXPECT_EQ(result.verdict, Verdict::kNotObserved);
  EXPECT_THAT(result.reason, HasSubstr("no origins were shown"));
}

TEST_F(ProvenanceTest, HolesAreNotAPass) {
  CheckResult result = Judge([](OriginScript& script) {
    script.Record(OriginUse::kHeldParameter, 1, 2).use = OriginUse::kBackwardParameter;
    script.Value(OriginUse::kBackwardParameter, 1, 2).version = 1;
  });
  EXPECT_NE(result.verdict, Verdict::kPass);
  result = Judge([](OriginScript& script) {
    script.Record(OriginUse::kBackwardParameter, 1, 2).run_count = 0;
  });
  EXPECT_EQ(result.verdict, Verdict::kNotObserved);
  EXPECT_EQ(result.reason, "rank 1 showed origins of 0 of 6 elements of a backward_parameter");
  result = Judge([](OriginScript& script) {
    std::vector<OriginRecord>& records = script.observed().origins.records;
    records.pop_back();  // rank 1's second moment of layers.1.bias
  });
  EXPECT_EQ(result.verdict, Verdict::kNotObserved);
  EXPECT_EQ(result.reason, "rank 1 showed the origins of 66 of the 68 elements of its state");
}

TEST_F(ProvenanceTest, IndicesOutsideTheTablesAreNoCrash) {
  const CheckResult result = Judge([](OriginScript& script) {
    StepOrigins& origins = script.observed().origins;
    for (OriginRun& run : origins.runs) {
      run.origin.terms = 1000;
      run.origin.mixture = 1000;
      run.origin.tensor = 77;
      run.origin.rank = run.origin.buffer = 99;
    }
    origins.runs[0].origin.kind = OriginKind::kMixed;
    origins.runs[1].origin.kind = OriginKind::kFreed;
    origins.records[0].rank = 55;
    origins.records[1].rank = -1;
    origins.records[2].tensor = 99;
    origins.records[3].first_run = 1u << 31;
    origins.records[4].run_count = 1u << 31;
  });
  EXPECT_EQ(result.verdict, Verdict::kFail);
}

}  // namespace
}  // namespace shardproof
