#include "invariants/checks/hand_made.h"

#include <cmath>
#include <cstdlib>
#include <utility>

#include "invariants/checks/float_bits.h"
#include "invariants/closed_forms/closed_forms.h"

namespace shardproof {
namespace {

constexpr int64_t kUnitElements[] = {9, 8};

Event Collective(CollectiveKind kind, Purpose purpose, Phase phase, int32_t unit, int32_t ranks) {
  Event event;
  event.kind = EventKind::kCollective;
  event.stream = StreamId::kCommunication;
  event.collective = kind;
  event.purpose = purpose;
  event.phase = phase;
  event.group = {0, 1, ranks};
  event.unit = unit;
  event.elements =
      unit < 0 ? 17 : kUnitElements[unit] + (ranks - kUnitElements[unit] % ranks) % ranks;
  return event;
}

Event Compute(Phase phase, int32_t stage, int32_t stages) {
  Event event;
  event.kind = EventKind::kCompute;
  event.phase = phase;
  event.unit = stage;
  event.stage = stage;
  event.stage_count = stages;
  event.micro_batch = 0;
  return event;
}

Event Of(EventKind kind, StreamId stream, int32_t unit) {
  Event event;
  event.kind = kind;
  event.stream = stream;
  event.unit = unit;
  return event;
}

Access Allocate(int32_t buffer) { return {buffer, AccessKind::kAllocate, {0, 8}, -1}; }
Access Free(int32_t buffer) { return {buffer, AccessKind::kFree, {0, 8}, -1}; }
Access Read(int32_t buffer, int64_t version = -1) {
  return {buffer, AccessKind::kRead, {0, 8}, static_cast<int32_t>(version)};
}
Access Write(int32_t buffer, int64_t version = -1) {
  return {buffer, AccessKind::kWrite, {0, 8}, static_cast<int32_t>(version)};
}

ScriptedEvent Gather(Phase phase, int32_t unit, int32_t ranks, int64_t step,
                     std::vector<int32_t> waits) {
  return {Collective(CollectiveKind::kAllGather, Purpose::kUnshardParameters, phase, unit, ranks),
          {Allocate(2 + unit), Read(unit, step), Write(2 + unit, step)},
          std::move(waits)};
}

ScriptedEvent Forward(int32_t unit, int64_t step, int32_t wait) {
  return {Compute(Phase::kForward, unit, 1), {Read(2 + unit, step)}, {wait}};
}

ScriptedEvent Backward(int32_t unit, int64_t step, int32_t wait) {
  return {Compute(Phase::kBackward, unit, 1),
          {Allocate(4 + unit), Read(2 + unit, step), Write(4 + unit)},
          {wait}};
}

ScriptedEvent Reshard(int32_t unit) {
  return {Of(EventKind::kReshard, StreamId::kCompute, unit), {Free(2 + unit)}, {}};
}

ScriptedEvent Reduce(int32_t unit, int32_t ranks, int32_t wait) {
  return {Collective(CollectiveKind::kReduceScatter, Purpose::kReduceGradients, Phase::kBackward,
                     unit, ranks),
          {Allocate(6 + unit), Read(4 + unit), Write(6 + unit)},
          {wait}};
}

ScriptedEvent Release(int32_t unit) {
  return {Of(EventKind::kRelease, StreamId::kCommunication, unit), {Free(4 + unit)}, {}};
}

bool Whole(const RunDescription& run) { return run.sharding.mode == Mode::kReplicated; }

}  // namespace

RunDescription HandMadeRun(Mode mode, int32_t ranks) {
  RunDescription run;
  run.model.name = "hand_made";
  run.model.tensors = {{"layers.0.weight", {3, 2}, 2, true, {}},
                       {"layers.0.bias", {3}, 2, true, {}},
                       {"layers.1.weight", {2, 3}, 3, true, {}},
                       {"layers.1.bias", {2}, 3, true, {}}};
  run.model.stages = {{"layers.0", {0, 1}}, {"layers.1", {2, 3}}};
  run.model.units = {{"layers.0", {0}, true}, {"layers.1", {1}, true}};
  run.sharding.mode = mode;
  run.sharding.world_size = {ranks};
  if (mode == Mode::kFullShard) run.sharding.prefetch = Prefetch::kNone;
  return run;
}

RankEvents Script::Show() const {
  RankEvents shown;
  shown.ranks = ranks;
  shown.buffers = buffers;
  shown.live_before = live_before;
  for (const ScriptedEvent& scripted : events) {
    Event event = scripted.event;
    event.first_access = static_cast<uint32_t>(shown.accesses.size());
    event.access_count = static_cast<uint32_t>(scripted.accesses.size());
    event.first_wait = static_cast<uint32_t>(shown.waits.size());
    event.wait_count = static_cast<uint32_t>(scripted.waits.size());
    shown.accesses.insert(shown.accesses.end(), scripted.accesses.begin(), scripted.accesses.end());
    shown.waits.insert(shown.waits.end(), scripted.waits.begin(), scripted.waits.end());
    shown.events.push_back(event);
  }
  return shown;
}

void Script::Drop(int32_t event) {
  const StreamId stream = events[event].event.stream;
  events[event] = {Of(EventKind::kLocal, stream, -1), {}, {}};
}

Script FullShardScript(int32_t rank, int32_t ranks, int64_t step) {
  Script script;
  script.ranks = {rank, 1, 1};
  for (const BufferRole role : {BufferRole::kParameter, BufferRole::kUnshardedParameter,
                                BufferRole::kUnreducedGradient, BufferRole::kGradient}) {
    for (int32_t unit = 0; unit < 2; ++unit) {
      script.buffers.push_back({role, Dtype::kFloat32, MemoryTier::kDevice, 8, unit, -1});
    }
  }
  script.buffers.push_back(
      {BufferRole::kOptimizerState, Dtype::kFloat32, MemoryTier::kDevice, 8, -1, -1});
  script.live_before = {0, 1, 8};
  const Phase forward = Phase::kForward;
  const Phase backward = Phase::kBackward;
  script.events = {
      Gather(forward, 0, ranks, step, {}),
      Forward(0, step, 0),
      Reshard(0),
      Gather(forward, 1, ranks, step, {2}),
      Forward(1, step, 3),
      Reshard(1),
      Gather(backward, 1, ranks, step, {5}),
      Backward(1, step, 6),
      Reshard(1),
      Reduce(1, ranks, 8),
      Release(1),
      Gather(backward, 0, ranks, step, {8}),
      Backward(0, step, 11),
      Reshard(0),
      Reduce(0, ranks, 13),
      Release(0),
      {Of(EventKind::kOptimizer, StreamId::kCompute, -1),
       {Read(6), Read(7), Read(8), Read(0, step), Read(1, step), Write(0, step + 1),
        Write(1, step + 1), Write(8), Free(6), Free(7)},
       {15}},
  };
  return script;
}

Script ReplicatedScript(int32_t rank, int32_t ranks, int64_t step) {
  Script script;
  script.ranks = {rank, 1, 1};
  script.buffers = {
      {BufferRole::kParameter, Dtype::kFloat32, MemoryTier::kDevice, 8, -1, 0},
      {BufferRole::kGradient, Dtype::kFloat32, MemoryTier::kDevice, 8, -1, 0},
  };
  script.live_before = {0};
  Event reduce = Collective(CollectiveKind::kAllReduce, Purpose::kReduceGradients, Phase::kBackward,
                            -1, ranks);
  reduce.bucket = 0;
  script.events = {
      {Compute(Phase::kForward, 0, 2), {Read(0, step)}, {}},
      {Compute(Phase::kBackward, 0, 2), {Allocate(1), Read(0, step), Write(1)}, {}},
      {reduce, {Read(1), Write(1)}, {1}},
      {Of(EventKind::kOptimizer, StreamId::kCompute, -1),
       {Read(1), Read(0, step), Write(0, step + 1), Free(1)},
       {2}},
  };
  return script;
}

StepObservation ShowScripts(const std::vector<Script>& scripts, int64_t step) {
  StepObservation observed;
  observed.step = step;
  for (const Script& script : scripts) observed.events.push_back(script.Show());
  return observed;
}

HandMadeTraining::HandMadeTraining(const RunDescription& run, Arithmetic arithmetic)
    : run_(run), arithmetic_(arithmetic) {
  values_.resize(run_.model.tensors.size());
  for (size_t t = 0; t < values_.size(); ++t) {
    const int64_t elements = Elements(run_.model.tensors[t]);
    for (auto& values : values_[t].classes) values.assign(elements, 0);
    values_[t].magnitude.assign(elements, 0);
    for (int64_t i = 0; i < elements; ++i) {
      values_[t].classes[0][i] = 0.5f + static_cast<float>(t) + 0.125f * static_cast<float>(i);
    }
  }
}

void HandMadeTraining::AdvanceTensor(int32_t tensor) {
  TensorValues& values = values_[tensor];
  ++values.updates;
  for (size_t i = 0; i < values.previous.size(); ++i) {
    const float gradient = 1 + static_cast<float>(i) + static_cast<float>(step_);
    values.classes[1][i] = gradient;
    values.classes[2][i] = 0.5f * values.classes[2][i] + gradient;
    values.classes[3][i] = 0.5f * values.classes[3][i] + gradient * gradient;
    values.classes[0][i] -= 0.01f * gradient;
  }
}

// Gradients of both signs, whose contributions cancel in part.
void HandMadeTraining::UpdateTensor(int32_t tensor) {
  TensorValues& values = values_[tensor];
  const bool used = IsUsedInStep(run_, tensor, step_);
  for (size_t i = 0; i < values.previous.size(); ++i) {
    const int64_t number = (static_cast<int64_t>(i) * 7 + tensor * 3 + step_ * 5) % 11 - 5;
    values.classes[1][i] = used ? static_cast<float>(number) / 8 : 0;
    values.magnitude[i] = used ? 1.5f * std::abs(values.classes[1][i]) + 0.25f : 0;
  }
  if (!used) return;
  ++values.updates;
  const OptimizerDescription of = HyperParametersOf(run_.optimizer, tensor);
  const double t = static_cast<double>(values.updates);
  const float learning_rate = static_cast<float>(of.learning_rate);
  for (size_t i = 0; i < values.previous.size(); ++i) {
    float& p = values.classes[0][i];
    float& m = values.classes[2][i];
    float& v = values.classes[3][i];
    const float g = values.classes[1][i];
    if (of.kind == OptimizerKind::kSgd) {
      const float direction = g + static_cast<float>(of.weight_decay) * p;
      m = values.updates == 1 ? direction : static_cast<float>(of.momentum) * m + direction;
      p -= learning_rate * (of.momentum == 0 ? direction : m);
      continue;
    }
    // The moments written the other way round than the checks' formula.
    m = m * static_cast<float>(of.beta1) + g * static_cast<float>(1 - of.beta1);
    v = v * static_cast<float>(of.beta2) + g * g * static_cast<float>(1 - of.beta2);
    const float root = std::sqrt(v) / static_cast<float>(std::sqrt(1 - std::pow(of.beta2, t)));
    const float step = static_cast<float>(of.learning_rate / (1 - std::pow(of.beta1, t)));
    p *= static_cast<float>(1 - of.learning_rate * of.weight_decay);
    p -= step * (m / (root + static_cast<float>(of.epsilon)));
  }
}

void HandMadeTraining::AdvanceReference() {
  reference_ = {step_, {}, {}};
  for (size_t t = 0; t < values_.size(); ++t) {
    TensorValues& values = values_[t];
    values.previous = values.classes[0];
    const bool trainable = run_.model.tensors[t].trainable;
    if (trainable && arithmetic_ == Arithmetic::kAny) AdvanceTensor(static_cast<int32_t>(t));
    if (trainable && arithmetic_ == Arithmetic::kOptimizer) UpdateTensor(static_cast<int32_t>(t));
    ReferenceTensor tensor;
    tensor.parameter = values.classes[0].data();
    tensor.previous_parameter = values.previous.data();
    tensor.gradient = trainable ? values.classes[1].data() : nullptr;
    tensor.exp_avg = trainable ? values.classes[2].data() : nullptr;
    tensor.exp_avg_sq = trainable ? values.classes[3].data() : nullptr;
    if (arithmetic_ == Arithmetic::kOptimizer) tensor.gradient_magnitude = values.magnitude.data();
    tensor.updates = values.updates;
    reference_.tensors.push_back(tensor);
  }
}

void HandMadeTraining::Advance() {
  ++step_;
  AdvanceReference();
  observed_ = {};
  observed_.step = step_;
  storage_.clear();
  for (int32_t rank = 0; rank < run_.sharding.world_size.value; ++rank) ShowRank(rank);
}

void HandMadeTraining::ShowRank(int32_t rank) {
  RankState state;
  RankEvents events;
  state.ranks = events.ranks = {rank, 1, 1};
  for (const StateClass state_class : {StateClass::kParameter, StateClass::kReducedGradient,
                                       StateClass::kExpAvg, StateClass::kExpAvgSq}) {
    for (size_t unit = 0; unit < run_.model.units.size(); ++unit) {
      ShowUnit(rank, state_class, static_cast<int32_t>(unit), &state, &events);
    }
  }
  for (size_t t = 0; t < run_.model.tensors.size(); ++t) {
    if (run_.model.tensors[t].trainable)
      state.steps.push_back({static_cast<int32_t>(t), values_[t].updates});
  }
  observed_.states.push_back(std::move(state));
  observed_.events.push_back(std::move(events));
}

void HandMadeTraining::ShowUnit(int32_t rank, StateClass state, int32_t unit, RankState* shown,
                                RankEvents* events) {
  const int32_t buffer = static_cast<int32_t>(events->buffers.size());
  int64_t offset = 0;
  int64_t total = 0;
  const auto show = [&](int32_t tensor, ElementRange range, const std::vector<float>& values) {
    shown->segments.push_back({state, tensor, range, buffer, offset, Store(values)});
    offset += range.count;
  };
  const std::vector<int32_t> tensors = TensorsOfUnits(run_.model)[unit];
  for (const int32_t t : tensors) {
    const std::vector<float>& all = values_[t].classes[static_cast<int>(state)];
    const int64_t elements = static_cast<int64_t>(all.size());
    total += elements;
    if (state != StateClass::kParameter && !run_.model.tensors[t].trainable) continue;
    int64_t first = 0;
    int64_t end = elements;
    if (!Whole(run_)) {
      while (first < end && ExpectedOwner(run_, t, first).value != rank) ++first;
      while (end > first && ExpectedOwner(run_, t, end - 1).value != rank) --end;
    }
    if (first < end) {
      show(t, {first, end - first}, std::vector<float>(all.begin() + first, all.begin() + end));
    }
  }
  const int64_t ranks = run_.sharding.world_size.value;
  const int64_t size = Whole(run_) ? offset : (total + ranks - 1) / ranks;
  const int64_t padding = size - offset;
  if (padding > 0) {
    const float poison = PoisonValue({PoisonKind::kPadding, buffer});
    show(-1, {offset, padding}, std::vector<float>(padding, poison));
  }
  const BufferRole role = state == StateClass::kParameter         ? BufferRole::kParameter
                          : state == StateClass::kReducedGradient ? BufferRole::kGradient
                                                                  : BufferRole::kOptimizerState;
  events->buffers.push_back({role, Dtype::kFloat32, MemoryTier::kDevice, size, unit, -1});
}

float* HandMadeTraining::Store(const std::vector<float>& values) {
  storage_.push_back(std::make_unique<std::vector<float>>(values));
  return storage_.back()->data();
}

StateSegment& HandMadeTraining::Segment(int32_t rank, StateClass state, int32_t tensor) {
  for (StateSegment& segment : observed_.states[rank].segments) {
    if (segment.state == state && segment.tensor == tensor) return segment;
  }
  std::abort();  // a test that asks for what it did not make
}

float& HandMadeTraining::Value(int32_t rank, StateClass state, int32_t tensor, int64_t element) {
  StateSegment& segment = Segment(rank, state, tensor);
  for (const auto& stored : storage_) {
    if (stored->data() == segment.values) return stored->at(element - segment.range.first);
  }
  std::abort();
}

float& HandMadeTraining::Reference(StateClass state, int32_t tensor, int64_t element) {
  return values_[tensor].classes[static_cast<int>(state)].at(element);
}

}  // namespace shardproof
