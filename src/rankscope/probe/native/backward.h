/* Backward passes: each is recorded as a call, with its line. */

#ifndef RANKSCOPE_BACKWARD_H
#define RANKSCOPE_BACKWARD_H

#include "frames.h"
#include "shortcut.h"

#include <pthread.h>

enum { FUNCTION, DONE, FAILED, NEXT_CALL, DEPTHS, NAME };

/* Whether the pass comes from the line that the last one came from. */
static int same_place(Beat *beat) {
    PyFrameObject *frame = PyEval_GetFrame(), *outer;
    if (frame == NULL || beat->code == NULL || beat->code == Py_None) {
        return 0;
    }
    Py_INCREF(frame);
    for (long above = beat->above; above > 0 && frame != NULL; above--) {
        outer = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = outer;
    }
    if (frame == NULL) {
        return 0;
    }
    outer = PyFrame_GetBack(frame);
    int same = is_at(frame, beat->code, beat->lasti) &&
               (outer == NULL ? beat->outer_code == Py_None : is_at(outer, beat->outer_code, beat->outer_lasti));
    Py_DECREF(frame);
    Py_XDECREF(outer);
    return same;
}

static int set_depth(PyObject *depths, PyObject *thread, long depth) {
    PyObject *number = PyLong_FromLong(depth);
    int failed = number == NULL || PyDict_SetItem(depths, thread, number) < 0;
    Py_XDECREF(number);
    return failed ? -1 : 0;
}

/* The system's number of this thread. Asking the system takes longer than all else here; a child made by fork asks anew,
   as its thread has another number. */
static unsigned long FORKS;
static __thread unsigned long THREAD, THREAD_FORKS;

static void count_forks(void) {
    FORKS++;
}

static unsigned long thread_number(void) {
    if (THREAD == 0 || THREAD_FORKS != FORKS) {
        THREAD = PyThread_get_thread_native_id();
        THREAD_FORKS = FORKS;
    }
    return THREAD;
}

/* In how many recorded calls the thread is before this one; -1 where that cannot be told. */
static long enter(PyObject *depths, PyObject *thread) {
    PyObject *known = PyDict_GetItemWithError(depths, thread);
    long depth = known == NULL ? 0 : PyLong_AsLong(known);
    return PyErr_Occurred() || set_depth(depths, thread, depth + 1) < 0 ? -1 : depth;
}

static uint64_t *record_pass(Shortcut *shortcut, uint64_t index, uint64_t thread, long depth) {
    Beat *beat = shortcut->beat;
    uint64_t *counters = beat->words + beat->counters, now = now_ns();
    uint64_t *call = beat->words + beat->ring + (Py_ssize_t)(index % (uint64_t)beat->slots) * beat->call_words;
    call[0] = now;
    call[1] = call[2] = 0;
    call[3] = counters[STEPS];
    call[4] = PyLong_AsUnsignedLongLong(shortcut->parts[NAME]);
    call[5] = beat->site | thread << 32;
    call[6] = UINT64_MAX; /* no peer */
    call[7] = UINT32_MAX; /* no tensor */
    call[8] = (uint64_t)depth << 32;
    counters[CALLS] = index + 1;
    counters[CHANGED] = now;
    return call;
}

static PyObject *backward(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    Shortcut *shortcut = (Shortcut *)self;
    Beat *beat = shortcut->beat;
    PyObject *given, *thread, *number = NULL, *result;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    if (beat->full || beat->words == NULL || beat->losses != Py_None || count == 0 || !same_place(beat)) {
        return PyObject_Vectorcall(shortcut->usual, args, nargsf, keywords);
    }
    unsigned long native = thread_number();
    long depth = -1;
    given = arguments(args, count);
    thread = PyLong_FromUnsignedLong(native);
    if (given == NULL || thread == NULL || (depth = enter(shortcut->parts[DEPTHS], thread)) < 0 ||
        (number = PyIter_Next(shortcut->parts[NEXT_CALL])) == NULL) {
        PyErr_Clear(); /* no memory for a number: the program is to be told that by its own next one */
        Py_XDECREF(given);
        Py_XDECREF(thread);
        return PyObject_Vectorcall(shortcut->parts[FUNCTION], args, nargsf, keywords);
    }
    uint64_t index = PyLong_AsUnsignedLongLong(number), *map = beat->words;
    uint64_t *call = record_pass(shortcut, index, native, depth);
    replace(&beat->losses, given);
    result = PyObject_Vectorcall(shortcut->parts[FUNCTION], args, nargsf, keywords);
    if (result == NULL) {
        call_aside(shortcut->parts[FAILED], number, thread);
        Py_DECREF(given);
        return NULL;
    }
    uint64_t *counters = beat->words + beat->counters;
    uint64_t now = counters[CHANGED] = now_ns();
    if (map == beat->words && counters[CALLS] - index < (uint64_t)beat->slots) {
        call[1] = now;
    }
    if (set_depth(shortcut->parts[DEPTHS], thread, depth) < 0) {
        PyErr_Clear();
    }
    if (beat->full || beat->losses == given) {
        PyObject *done = PyObject_CallOneArg(shortcut->parts[DONE], given);
        if (done == NULL) {
            PyErr_Clear();
        }
        Py_XDECREF(done);
    }
    Py_DECREF(given);
    Py_DECREF(thread);
    Py_DECREF(number);
    return result;
}

#endif
