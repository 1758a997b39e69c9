/* Backward passes: each is recorded as a call, with its line. */

#ifndef RANKSCOPE_BACKWARD_H
#define RANKSCOPE_BACKWARD_H

#include "depths.h"
#include "frames.h"
#include "gradient.h"

enum { FUNCTION, DONE, FAILED, NEXT_CALL, DEPTHS, NAME };

/* So many frames above this one; gives this one up. NULL where there are less. */
static PyFrameObject *above(PyFrameObject *frame, long count) {
    while (count-- > 0 && frame != NULL) {
        PyFrameObject *outer = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = outer;
    }
    return frame;
}

/* Whether the pass comes from the line that the last one came from. */
static int same_place(Beat *beat) {
    PyFrameObject *frame = PyEval_GetFrame();
    if (frame == NULL || beat->code == NULL || beat->code == Py_None) {
        return 0;
    }
    frame = above((PyFrameObject *)Py_NewRef(frame), beat->above);
    if (frame == NULL || !is_at(frame, beat->code, beat->lasti)) {
        Py_XDECREF(frame);
        return 0;
    }
    if (beat->outer_code != Py_None) {
        frame = above(frame, beat->between + 1);
        int same = frame != NULL && is_at(frame, beat->outer_code, beat->outer_lasti);
        Py_XDECREF(frame);
        return same;
    }
    frame = above(frame, beat->between); /* the last one */
    PyFrameObject *outer = frame == NULL ? NULL : PyFrame_GetBack(frame);
    int same = frame != NULL && outer == NULL;
    Py_XDECREF(outer);
    Py_XDECREF(frame);
    return same;
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
    PyObject *given, *number, *result;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    if (beat->full || beat->words == NULL || beat->losses != Py_None || count == 0 || !same_place(beat)) {
        return PyObject_Vectorcall(shortcut->usual, args, nargsf, keywords);
    }
    unsigned long native = thread_number();
    given = arguments(args, count);
    number = given == NULL ? NULL : PyIter_Next(shortcut->parts[NEXT_CALL]);
    Depth *own = number == NULL ? NULL : depth_of((Depths *)shortcut->parts[DEPTHS], native);
    if (own == NULL) {
        PyErr_Clear(); /* no memory for a number: the program is to be told that by its own next one */
        Py_XDECREF(given);
        Py_XDECREF(number);
        return PyObject_Vectorcall(shortcut->parts[FUNCTION], args, nargsf, keywords);
    }
    uint64_t index = PyLong_AsUnsignedLongLong(number), *map = beat->words;
    uint64_t *call = record_pass(shortcut, index, native, own->depth++);
    /* Here, where autograd has just asked it the same, the loss answers at once. */
    beat->loss_is_finite = has_finite_loss(beat, given);
    replace(&beat->losses, given);
    result = PyObject_Vectorcall(shortcut->parts[FUNCTION], args, nargsf, keywords);
    beat->loss_is_finite = 0; /* of this pass alone */
    if (result == NULL) {
        call_aside(shortcut->parts[FAILED], number, PyLong_FromUnsignedLong(native));
        Py_DECREF(given);
        return NULL;
    }
    leave((Depths *)shortcut->parts[DEPTHS], thread_number());
    uint64_t *counters = beat->words + beat->counters;
    uint64_t now = counters[CHANGED] = now_ns();
    if (map == beat->words && counters[CALLS] - index < (uint64_t)beat->slots) {
        call[1] = now;
    }
    if (beat->full || beat->losses == given) {
        PyObject *done = PyObject_CallOneArg(shortcut->parts[DONE], given);
        if (done == NULL) {
            PyErr_Clear();
        }
        Py_XDECREF(done);
    }
    Py_DECREF(given);
    Py_DECREF(number);
    return result;
}

#endif
