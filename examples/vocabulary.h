/* Tokens and text, enough for these examples: the vocabulary of a byte-level tokenizer.json.
 *
 * SPDX-License-Identifier: MIT
 *
 * A program that people use takes a tokenizer library instead. This one cuts text into the longest pieces that it
 * finds, which is close to what models were trained with, but not the same.
 */
#ifndef MKRT_EXAMPLES_VOCABULARY_H_
#define MKRT_EXAMPLES_VOCABULARY_H_

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The bytes that a token stands for. */
typedef struct vocabulary_piece {
  char* bytes;
  size_t length;
} vocabulary_piece;

typedef struct vocabulary {
  vocabulary_piece* pieces; /* by token; those that the file does not have are empty */
  uint32_t size;
} vocabulary;

static inline void vocabulary_free(vocabulary* v) {
  uint32_t token;
  for (token = 0; token < v->size; ++token) free(v->pieces[token].bytes);
  free(v->pieces);
  v->pieces = NULL;
  v->size = 0;
}

/* The file writes bytes as characters that can be seen: those that can, as they are, and the others, in their order,
 * as the characters from 256 on. Returns -1 for a character that stands for no byte. */
static inline int vocabulary_byte(uint32_t character) {
  int byte;
  uint32_t next = 256;
  for (byte = 0; byte < 256; ++byte) {
    const int seen = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    if (character == (seen ? (uint32_t)byte : next)) return byte;
    if (!seen) ++next;
  }
  return -1;
}

/* Reads the character at `*text`, an escape of JSON or UTF-8 of at most two bytes, which is all that there is. */
static inline uint32_t vocabulary_character(const char** text) {
  const unsigned char first = (unsigned char)*(*text)++;
  if (first == '\\' && **text == 'u') {
    const char digits[5] = {(*text)[1], (*text)[2], (*text)[3], (*text)[4], 0};
    *text += 5;
    return (uint32_t)strtoul(digits, NULL, 16);
  }
  if (first == '\\') return (unsigned char)*(*text)++; /* a quote or a backslash */
  if (first < 0x80 || **text == 0) return first;
  return (first & 0x1fU) << 6 | ((unsigned char)*(*text)++ & 0x3fU);
}

/* Reads `"piece": token` at `*text`; 0 where there is none. */
static inline int vocabulary_read_piece(vocabulary* v, const char** text) {
  vocabulary_piece piece = {NULL, 0};
  unsigned long token;
  const char* start = *text += strspn(*text, " \n\r\t,");
  if (*start != '"') return 0;
  piece.bytes = (char*)malloc(strlen(start) < 4096 ? strlen(start) : 4096); /* no piece is as long */
  for (++*text; piece.bytes != NULL && **text != '"' && **text != 0 && piece.length < 4095;) {
    const int byte = vocabulary_byte(vocabulary_character(text));
    if (byte >= 0) piece.bytes[piece.length++] = (char)byte;
  }
  token = **text == '"' ? strtoul(*text + 1 + strspn(*text + 1, " :"), (char**)text, 10) : v->size;
  if (piece.bytes == NULL || token >= v->size || v->pieces[token].bytes != NULL) {
    free(piece.bytes);
    return 0;
  }
  v->pieces[token] = piece;
  return 1;
}

/* Reads the vocabulary of the tokenizer.json in folder `package`, of at most `size` tokens; 0 where there is none. To
 * be freed in either case. */
static inline int vocabulary_load(vocabulary* v, const char* package, uint32_t size) {
  char path[4096];
  char* text = NULL;
  const char* place = NULL;
  long length = 0;
  FILE* file;
  v->pieces = NULL;
  v->size = 0;
  snprintf(path, sizeof path, "%s/tokenizer.json", package);
  file = fopen(path, "rb");
  if (file == NULL) return 0;
  if (fseek(file, 0, SEEK_END) == 0) length = ftell(file);
  rewind(file);
  if (length > 0) text = (char*)calloc((size_t)length + 8, 1); /* an escape that is cut off ends in zeros */
  if (text != NULL && fread(text, 1, (size_t)length, file) == (size_t)length) place = strstr(text, "\"vocab\"");
  fclose(file);
  v->pieces = (vocabulary_piece*)calloc(size, sizeof *v->pieces);
  v->size = v->pieces == NULL ? 0 : size;
  if (place != NULL) place = strchr(place, '{');
  if (place != NULL) {
    for (++place; vocabulary_read_piece(v, &place);) continue;
  }
  free(text);
  return place != NULL && v->size != 0;
}

/* Prints what tokens stand for. */
static inline void vocabulary_print(const vocabulary* v, const int32_t* tokens, uint32_t count) {
  uint32_t i;
  for (i = 0; i < count; ++i) {
    if (tokens[i] < 0 || (uint32_t)tokens[i] >= v->size) continue;
    fwrite(v->pieces[tokens[i]].bytes, 1, v->pieces[tokens[i]].length, stdout);
  }
  fflush(stdout);
}

/* Cuts `text` into tokens, at most `limit`; returns how many. What no piece begins with is left out. */
static inline uint32_t vocabulary_cut(const vocabulary* v, const char* text, int32_t* out_tokens, uint32_t limit) {
  uint32_t count = 0;
  while (*text != 0 && count < limit) {
    uint32_t token, best = v->size;
    for (token = 0; token < v->size; ++token) {
      const vocabulary_piece* piece = &v->pieces[token];
      if (piece->length == 0 || strncmp(text, piece->bytes, piece->length) != 0) continue;
      if (best == v->size || piece->length > v->pieces[best].length) best = token;
    }
    if (best < v->size) out_tokens[count++] = (int32_t)best;
    text += best < v->size ? v->pieces[best].length : 1;
  }
  return count;
}

#endif /* MKRT_EXAMPLES_VOCABULARY_H_ */
