/* A client of a task without Python: the C interface of torchfsl's client core.
 *
 * The core does no input or output. It says what to send to or fetch from which of the two servers,
 * and takes what came back. A round goes:
 *
 *     tfsl_plan_open(text, size, &plan, message, sizeof message);
 *     tfsl_round_begin(plan, client, number, wanted, num_wanted, &round);
 *     while (tfsl_round_next(round, &step) == TFSL_OK && step.kind != TFSL_DONE) {
 *       TFSL_SEND:   send step.data to server step.party, then tfsl_round_give(round, NULL, 0)
 *       TFSL_FETCH:  ask server step.party for step.message, then tfsl_round_give(round, answer)
 *       TFSL_TRAIN:  tfsl_round_clear, tfsl_round_rows, train, then tfsl_round_submit
 *     }
 *     tfsl_round_close(round);
 *
 * Ownership: arguments are borrowed for the call. What the core hands out is a view that lasts
 * until the next call with the same handle. Threads: a plan may be shared; a round is used by one
 * at a time. No call changes anything outside its handles.
 *
 * What servers see does not depend on private rows or values: where these are wrong, the call
 * returns TFSL_ARGUMENT, and the steps that follow send a report that adds nothing. Where a server
 * or its answer is wrong, the client says nothing more in the round. docs/client-core.md is the
 * reference.
 */
#ifndef TORCHFSL_CLIENT_H
#define TORCHFSL_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TFSL_API __attribute__((visibility("default")))
#else
#define TFSL_API
#endif

#ifdef __cplusplus
#define TFSL_NOEXCEPT noexcept
extern "C" {
#else
#define TFSL_NOEXCEPT
#endif

#define TFSL_ABI_VERSION 1u

typedef enum tfsl_status {
  TFSL_OK = 0,
  TFSL_ARGUMENT = 1,    /* the caller's mistake: ParameterError */
  TFSL_DECODE = 2,      /* bytes that are no plan or no message: DecodeError */
  TFSL_PROTOCOL = 3,    /* a server altered or mixed something up: ProtocolError */
  TFSL_STATE = 4,       /* a call out of order: ProtocolError */
  TFSL_UNSUPPORTED = 5, /* a plan field that this version does not know; the message names it */
  TFSL_MEMORY = 6,
  TFSL_RANDOM = 7, /* the system gives no random bytes */
  TFSL_INTERNAL = 8
} tfsl_status;

typedef struct tfsl_plan tfsl_plan;
typedef struct tfsl_round tfsl_round;

typedef struct tfsl_view {
  const void* data;
  size_t size; /* in bytes */
} tfsl_view;

enum { TFSL_LANE_NONE = 0, TFSL_LANE_COUNT = 1, TFSL_LANE_WEIGHT = 2 };
enum { TFSL_PROOFS_NONE = 0, TFSL_PROOFS_LANES = 1, TFSL_PROOFS_NORM = 2 };
enum { TFSL_CLIP_WHOLE = 0, TFSL_CLIP_CLIP = 1, TFSL_CLIP_NORMALISE = 2 };
enum { TFSL_ROWS = 0, TFSL_BLOCKS = 1, TFSL_SCALARS = 2, TFSL_DENSE = 3 };
enum { TFSL_FLOAT16 = 0, TFSL_FLOAT32 = 1, TFSL_FLOAT64 = 2, TFSL_INT64 = 3 };
enum { TFSL_SEND = 0, TFSL_FETCH = 1, TFSL_TRAIN = 2, TFSL_DONE = 3 };
enum {
  TFSL_OUTCOME_NONE = 0,
  TFSL_OUTCOME_REPORT = 1,
  TFSL_OUTCOME_DUMMY = 2,
  TFSL_OUTCOME_SILENT = 3
};

/* The caller sets struct_size; so many bytes are written at most. */
typedef struct tfsl_plan_fields {
  size_t struct_size;
  uint64_t max_clients, min_clients, max_weight, max_rounds, min_contributors;
  uint64_t max_participations, min_separation; /* 0 and 1 without limits */
  uint64_t l2_bound, noise_sigma, lane_sigma;  /* 0 for none */
  uint64_t upload_bytes, download_bytes;       /* of all messages of a round */
  uint32_t lane, proofs, clip;                 /* TFSL_LANE_.., TFSL_PROOFS_.., TFSL_CLIP_.. */
  uint32_t sum_bound;                          /* 1 if servers bound the norm of sums, else 0 */
  uint32_t checked;                            /* 1 if trees carry check words, else 0 */
  uint32_t num_segments, num_clear;            /* num_clear: tensors in the clear */
  uint32_t num_server_keys;                    /* 2, or 0 where seeds travel unsealed */
  uint8_t digest[32], session[16], server_keys[2][32];
} tfsl_plan_fields;

typedef struct tfsl_segment_fields {
  size_t struct_size;
  uint64_t positions, width, most_rows; /* m, tau, k_max */
  uint64_t l2_bound;                    /* its own, or 0 */
  double clip;                          /* largest magnitude that is kept */
  uint32_t frac_bits;                   /* a unit is 2^-frac_bits */
  uint32_t policy;                      /* TFSL_ROWS .. TFSL_DENSE */
  uint32_t retrieved;                   /* 1 if rows are fetched privately */
  uint32_t num_tensors;
  tfsl_view name; /* lasts as long as the plan, as all views of a plan; no zero behind it */
} tfsl_segment_fields;

typedef struct tfsl_tensor_fields {
  size_t struct_size;
  uint32_t dtype; /* TFSL_FLOAT16 .. TFSL_FLOAT64 */
  uint32_t num_dims;
  const uint64_t* shape;
  uint64_t positions; /* of the segment's positions, the tensors' in order */
  tfsl_view name;
} tfsl_tensor_fields;

/* Rows to fetch of a retrieved segment: distinct, increasing, at most k_max. */
typedef struct tfsl_rows {
  uint32_t segment;
  uint32_t reserved; /* 0 */
  const int64_t* ids;
  size_t num;
} tfsl_rows;

/* A segment's part of an update: values [num_rows, tau], real or, with TFSL_INT64, quantised.
 * Dense segments have all m values, and rows NULL. */
typedef struct tfsl_part {
  uint32_t segment;
  uint32_t dtype; /* TFSL_FLOAT32, TFSL_FLOAT64 or TFSL_INT64 */
  const int64_t* rows;
  size_t num_rows;
  const void* values;
} tfsl_part;

typedef struct tfsl_step {
  uint32_t kind;    /* TFSL_SEND .. TFSL_DONE */
  uint32_t party;   /* the server, 0 or 1 */
  uint32_t message; /* its kind on the wire */
  uint32_t outcome; /* of TFSL_DONE: what left the client */
  uint64_t round, client;
  const uint8_t* data; /* of TFSL_SEND */
  size_t size;         /* of data, or of the answer that a fetch brings */
} tfsl_step;

TFSL_API uint32_t tfsl_abi_version(void) TFSL_NOEXCEPT;

/* `message`, if not NULL, receives what is wrong, of `room` bytes with the final zero at most. */
TFSL_API tfsl_status tfsl_plan_open(const uint8_t* json, size_t size, tfsl_plan** plan,
                                    char* message, size_t room) TFSL_NOEXCEPT;
TFSL_API tfsl_status tfsl_plan_info(const tfsl_plan* plan, tfsl_plan_fields* fields) TFSL_NOEXCEPT;
TFSL_API tfsl_status tfsl_plan_segment(const tfsl_plan* plan, uint32_t segment,
                                       tfsl_segment_fields* fields) TFSL_NOEXCEPT;
TFSL_API tfsl_status tfsl_plan_tensor(const tfsl_plan* plan, uint32_t segment, uint32_t tensor,
                                      tfsl_tensor_fields* fields) TFSL_NOEXCEPT;
TFSL_API void tfsl_plan_close(tfsl_plan* plan) TFSL_NOEXCEPT;

/* The plan must outlive the round. With TFSL_ARGUMENT and *round not NULL the rows were wrong:
 * go through the round all the same, it sends what any other sends. */
TFSL_API tfsl_status tfsl_round_begin(const tfsl_plan* plan, uint64_t client, uint64_t number,
                                      const tfsl_rows* wanted, size_t num_wanted,
                                      tfsl_round** round) TFSL_NOEXCEPT;
/* The same step again until it is answered by tfsl_round_give or tfsl_round_submit. */
TFSL_API tfsl_status tfsl_round_next(tfsl_round* round, tfsl_step* step) TFSL_NOEXCEPT;
TFSL_API tfsl_status tfsl_round_give(tfsl_round* round, const uint8_t* answer,
                                     size_t size) TFSL_NOEXCEPT;
/* From TFSL_TRAIN on: ids int64[k], increasing, and values [k, tau] in the tensors' dtype. */
TFSL_API tfsl_status tfsl_round_rows(tfsl_round* round, uint32_t segment, tfsl_view* ids,
                                     tfsl_view* values) TFSL_NOEXCEPT;
/* Of all tensors of segments that are not retrieved, in order; in the tensor's dtype. */
TFSL_API tfsl_status tfsl_round_clear(tfsl_round* round, uint32_t tensor,
                                      tfsl_view* values) TFSL_NOEXCEPT;
TFSL_API tfsl_status tfsl_round_submit(tfsl_round* round, const tfsl_part* parts, size_t num_parts,
                                       uint64_t weight) TFSL_NOEXCEPT;
/* The steps that follow send a report that adds nothing. */
TFSL_API tfsl_status tfsl_round_abort(tfsl_round* round) TFSL_NOEXCEPT;
/* What the last call that failed said, `code: text`, without private rows or values. */
TFSL_API tfsl_status tfsl_last_message(const tfsl_round* round, char* message,
                                       size_t room) TFSL_NOEXCEPT;
/* Wipes. A round that is closed before its end says nothing more, as one that dropped out. */
TFSL_API void tfsl_round_close(tfsl_round* round) TFSL_NOEXCEPT;

#ifdef TORCHFSL_CLIENT_TAPE
/* Builds for tests alone: the round's random bytes come from `tape`, which must outlive it. */
TFSL_API tfsl_status tfsl_test_round_begin(const tfsl_plan* plan, uint64_t client, uint64_t number,
                                           const tfsl_rows* wanted, size_t num_wanted,
                                           const uint8_t* tape, size_t tape_size,
                                           tfsl_round** round) TFSL_NOEXCEPT;
#endif

#ifdef __cplusplus
}
#endif

#endif
